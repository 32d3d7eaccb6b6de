"""A day of jobs that use Lustre, for `jobstats_store.py --compression`."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from ccagent.stores.jobstats.schema import MDT, OST

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class BusyEntry:
    """The counters of a job's node on one target. Times are in minutes of the day."""

    def __init__(self, chance: random.Random, target: str, job: int, node: int) -> None:
        self.chance, self.target, self.id = chance, target, f"{job}:{1000 + job % 97}:c{node}"
        names: Sequence[str] = MDT if "MDT" in target else OST
        self.counters: dict[str, int] = dict.fromkeys(names, 0)
        self.start = self.snapshot = 0.0

    def work(self, now: float, size: int, *, is_burst: bool, is_reading: bool) -> None:
        """Do what an interval that ends at `now` (seconds since 1970) has of a job."""
        chance, done = self.chance, dict[str, int]()
        if "MDT" in self.target:
            if is_burst or is_reading:
                done["open"] = done["close"] = chance.randrange(1, 12)
                done |= {"mknod": 1, "setattr": 1} if is_burst else {}
            if chance.random() < 0.3:
                done["getattr"] = chance.randrange(1, 60)
            times = [name for name in done if name in {"open", "close", "getattr"}]
        else:
            times = ["write"] * is_burst + ["read"] * is_reading
            for name in times:
                done[name] = chance.randrange(20, 1000)
                done[f"{name}_bytes"] = done[name] * size - chance.choice((0, 0, size // 3))
            done |= {"punch": 1, "setattr": 1} if is_burst and chance.random() < 0.3 else {}
        for name in times:
            done[f"{name}_usecs"] = int(done[name] * chance.lognormvariate(5, 0.5))
        if done:
            self.snapshot = now - chance.uniform(0, 60)
            self.start = self.start or self.snapshot
        for name, number in done.items():
            self.counters[name] = self.counters.get(name, 0) + number


def day_of_jobs(jobs: int) -> Iterator[list[dict[str, Any]]]:
    """Yield the records of each minute of a day."""
    chance = random.Random(1)  # noqa: S311 - no secret
    running: list[tuple[int, int, int, int, bool, list[BusyEntry]]] = []
    for job in range(900_000, 900_000 + jobs):
        length = max(3, int(chance.lognormvariate(math.log(40), 1.1)))
        places = [
            "MDT0000",
            *(f"OST{n:04x}" for n in chance.sample(range(8), chance.choice((1, 2)))),
        ]
        entries = [
            BusyEntry(chance, f"scratch-{place}", job, chance.randrange(1000))
            for _ in range(chance.choice((1, 1, 1, 2, 4, 8)))
            for place in places
        ]
        size = chance.choice((4096, 65536, 1 << 20, 4 << 20))
        begin = chance.randrange(-length // 2, 1440)
        running.append(
            (begin, length, chance.randrange(5, 20), size, chance.random() < 0.6, entries)
        )
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    for minute in range(1440):
        moment = midnight - timedelta(days=2, minutes=-minute)
        now = moment.timestamp()
        records: list[dict[str, Any]] = []
        for begin, length, period, size, reads, entries in running:
            age = minute - begin
            for each in entries if 0 <= age <= length + 10 else ():
                if age <= length:
                    is_burst = age > 0 and age % period == 0
                    each.work(now, size, is_burst=is_burst, is_reading=reads and age < 4)
                if now - each.snapshot <= 600:
                    records.append({
                        "target": each.target, "entry_id": each.id, "server": "oss",
                        "timestamp": moment.isoformat(), "snapshot_time": each.snapshot,
                        "start_time": each.start, **each.counters,
                    })  # fmt: skip
        if records:
            yield records
