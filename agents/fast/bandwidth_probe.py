"""Probe of memory bandwidth, run in a separate process.

One thread is pinned to each core. It first writes its buffer, so the pages are local. Then it reads
8 B of each line of 64 B until the end of the window. NumPy reads as fast as a loop in C, and
without the interpreter lock.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any, NamedTuple

import numpy as np

LINE = 64
"""Bytes of a cache line. A read moves a whole line."""

_WORD = 8
_PATIENCE = 30.0


class ThreadResult(NamedTuple):
    """Result of one thread. share: share of the window on the CPU."""

    core: int
    bandwidth: float
    share: float


def probe(cores: list[int], size: int, seconds: float) -> list[ThreadResult]:
    """Read buffers of `size` B from all cores simultaneously. Raise OSError if that fails."""
    barrier = threading.Barrier(len(cores))
    results: list[ThreadResult] = []
    errors: list[OSError] = []

    def work(core: int) -> None:
        try:
            results.append(_read_from(core, size, seconds, barrier))
        except OSError as error:
            errors.append(error)
            barrier.abort()
        except threading.BrokenBarrierError:
            pass

    threads = [threading.Thread(target=work, args=(core,)) for core in cores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return sorted(results)


def _read_from(core: int, size: int, seconds: float, barrier: threading.Barrier) -> ThreadResult:
    os.sched_setaffinity(0, {core})
    buffer: Any = np.empty(size // _WORD, dtype=np.int64)
    buffer.fill(core)
    lines = buffer[:: LINE // _WORD]
    # Of NumPy's reductions this one depends least on its own result (max is 10 % slower).
    read: Any = np.bitwise_or.reduce
    read(lines)
    barrier.wait(_PATIENCE)
    begin, cpu = time.monotonic(), time.thread_time()
    passes = 0
    while (now := time.monotonic()) < begin + seconds:
        read(lines)
        passes += 1
    now = time.monotonic()
    elapsed = now - begin
    share = (time.thread_time() - cpu) / elapsed
    return ThreadResult(core, passes * len(lines) * LINE / elapsed, min(1.0, share))


def main() -> None:
    """Probe with the arguments cores, bytes and seconds, and print the results as JSON."""
    cores = [int(core) for core in sys.argv[1].split(",")]
    try:
        results = probe(cores, int(sys.argv[2]), float(sys.argv[3]))
    except (OSError, MemoryError) as error:
        sys.exit(f"{getattr(error, 'strerror', None) or error or 'no memory'}")
    sys.stdout.write(json.dumps(results))
