"""What ccagent counts of itself, since its start."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Generator

    from ccagent.machine.clock import Clock


class AgentCounters(msgspec.Struct, rename="kebab"):
    """One agent.

    samples: taken and handed on. errors: samples that failed. skipped: ticks at which it was
    still busy. seconds, cpu_seconds: spent in samples, those of its thread. unencodable: records
    that its format can't express, and that were left out. restarts: of its thread, after an error
    that no agent may raise.
    """

    samples: int = 0
    errors: int = 0
    skipped: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    unencodable: int = 0
    restarts: int = 0

    @contextlib.contextmanager
    def counted(self, clock: Clock) -> Generator[None]:
        """Count what happens inside as a sample, or as an error if it raises."""
        begin, cpu = clock.monotonic(), time.thread_time()
        try:
            yield
        except BaseException:
            self.errors += 1
            raise
        else:
            self.samples += 1
        finally:
            self.seconds += clock.monotonic() - begin
            self.cpu_seconds += time.thread_time() - cpu


class SinkCounters(msgspec.Struct, rename="kebab"):
    """One sink, in messages.

    queued: put into the queue. backlog: in the queue now; backlog_bytes: their size. sent: handed
    to the transport, repetitions included. acknowledged: taken by the receiver. retried: to be sent
    again after a failure. rejected: dead letters, which the receiver will never take. dropped:
    deleted because the queue was too large or they were too old. damaged: dead letters because they
    could not be decoded. restarts: unforeseen errors after which the sink went on.
    last_error: the last error of the transport; empty since a batch was taken without trouble.
    queue_error: why the disk can't be used at present, so that messages wait in memory.
    """

    queued: int = 0
    backlog: int = 0
    backlog_bytes: int = 0
    sent: int = 0
    acknowledged: int = 0
    retried: int = 0
    rejected: int = 0
    dropped: int = 0
    damaged: int = 0
    restarts: int = 0
    last_error: str = ""
    queue_error: str = ""


class Counters(msgspec.Struct, frozen=True):
    """All agents and all sinks of a daemon, by name."""

    agents: dict[str, AgentCounters]
    sinks: dict[str, SinkCounters]


def resident_memory() -> int:
    """Return the memory of this process in KB (/proc/self/statm: resident); 0 if unknown."""
    try:
        with open("/proc/self/statm", "rb") as file:
            pages = int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    import resource

    return pages * resource.getpagesize() // 1024
