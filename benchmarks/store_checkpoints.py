"""Delay of requests by a checkpoint: CPU between two turns of the event loop.

    python benchmarks/store_checkpoints.py

80,000 series of 1,000 nodes, and 30,720 series of 3 nodes with 256 hardware threads, each with 12
hours of values, one a minute. The figures are CPU time, which does not depend on other load.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.store_server import report
from ccagent.stores.metrics.checkpoints import Checkpointer
from ccagent.stores.metrics.line_keys import MetricCatalogue, StoredMetric
from ccagent.stores.metrics.store import MetricStore

if TYPE_CHECKING:
    from ccagent.stores.metrics.checkpoints import CheckpointFormat

NOW, STEPS = 1_800_000_000, 720


def filled(nodes: int, metrics: int, threads: int) -> MetricStore:
    """Return a store with 12 hours of values."""
    store = MetricStore(MetricCatalogue({"*": StoredMetric(60, "avg")}), lambda: NOW)
    values = np.random.default_rng(1).uniform(0, 1000, (STEPS, metrics * threads)).round(2)
    begin = NOW - 60 * STEPS
    for number in range(nodes):
        node = ("fox", f"node{number:04}")
        levels = [(*node, f"hwthread{n}") for n in range(threads)] if threads > 1 else [node]
        wanted = [(level, f"metric_{n:03}") for level in levels for n in range(metrics)]
        group = store.add(wanted, begin, 60)
        for step in range(STEPS):
            group.write_run(store.pool, begin + 60 * step, 0, values[step].tobytes())
    return store


async def measure(store: MetricStore, form: CheckpointFormat, directory: str) -> None:
    """Write a checkpoint. Report the longest time between two turns of the event loop."""
    state = f"{directory}/state"
    checkpointer = Checkpointer(store, f"{directory}/c", form, retention=10**6, state=state)
    gaps: list[float] = []

    async def watch() -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            gaps.append(now - last)
            last = now

    task = asyncio.create_task(watch())
    await asyncio.sleep(0.05)
    gaps.clear()
    begin = time.process_time()
    await checkpointer.write()
    used = time.process_time() - begin
    task.cancel()
    gaps.sort()
    ninety_nine = gaps[int(len(gaps) * 0.99)]
    report(
        f"checkpoint of {store.series:,} series, {form}: longest turn",
        f"{gaps[-1] * 1e3:.0f} ms (99 %: {ninety_nine * 1e3:.0f} ms), CPU {used:.1f} s",
    )


def main() -> None:
    """Measure both stores in both formats."""
    for nodes, metrics, threads in ((1000, 80, 1), (3, 40, 256)):
        store = filled(nodes, metrics, threads)
        gc.collect()
        gc.freeze()  # as in the store
        gc.set_threshold(100_000, 20, 100)
        formats: tuple[CheckpointFormat, ...] = ("json", "binary")
        for form in formats:
            with tempfile.TemporaryDirectory() as directory:
                asyncio.run(measure(store, form, directory))


if __name__ == "__main__":
    main()
