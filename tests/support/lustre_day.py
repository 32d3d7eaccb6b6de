"""A day of a file system on two servers, or a short one, and what can be seen of it."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ccagent.agents.lustre.agent import LustreAgent, LustreSettings
from ccagent.records.encoding import encode
from ccagent.records.message import Message
from tests.support.effort import IS_NIGHTLY
from tests.support.lustre_server import BYTES, SimulatedTarget
from tests.support.tree import TreeNode

EVERY = 120
HOUR = 3600
HOURS = 24 if IS_NIGHTLY else 8
STEPS = HOURS * HOUR // EVERY
BEGIN = 1_700_000_000.0
OPERATIONS = {"obdfilter": ("read_bytes", "write_bytes", "setattr"), "mdt": ("open", "unlink")}
RESETS = {"start_time", "absent", "decreased"}


class LustreServer:
    """A node that hosts targets, with an agent that remembers in a file."""

    def __init__(self, directory: Path, name: str) -> None:
        self.name = name
        self.node = TreeNode(directory / name)
        self.node.hostname = name
        self.state = str(directory / f"{name}.state")
        self.restart()

    def restart(self) -> None:
        self.agent = LustreAgent(
            LustreSettings(state_file=self.state, source="files"), frozenset({"sonar"})
        )

    def deliver(self, messages: list[Message]) -> None:
        """Queue the messages of a sample, before its state is saved."""

    def observe(self, now: float, texts: dict[str, bytes | None]) -> list[dict[str, Any]]:
        """Take a sample at `now` of targets with these texts; None: one that can't be read."""
        self.show(texts)
        return self.sample(now)

    def show(self, texts: dict[str, bytes | None]) -> None:
        """Put what the kernel would show below the node's root."""
        root = self.node.path / "proc/fs/lustre"
        shutil.rmtree(root, ignore_errors=True)
        for name, text in texts.items():
            path = root / name / "job_stats"
            path.parent.mkdir(parents=True)
            if text is None:
                path.mkdir()
            else:
                path.write_bytes(text)

    def sample(self, now: float) -> list[dict[str, Any]]:
        """Take a sample and return its records."""
        self.node.still.passed = now - BEGIN
        messages = encode(self.agent.sample(self.node), ["sonar"], self.node)
        self.deliver(messages)
        self.agent.save_state()
        return [record for message in messages for record in json.loads(message.body)]


class LustreDay:
    """The file system, what is really done on it, and what nobody can see of that."""

    def __init__(
        self,
        directory: Path,
        seed: int,
        make_server: Callable[[Path, str], LustreServer] = LustreServer,
    ) -> None:
        self.chance = random.Random(seed)
        self.targets = {
            "fs-OST0000": (SimulatedTarget("fs-OST0000", "obdfilter"), "2.15.2"),
            "fs-OST0001": (SimulatedTarget("fs-OST0001", "obdfilter"), "2.14"),
            "fs-MDT0000": (SimulatedTarget("fs-MDT0000", "mdt"), "2.17"),
        }
        self.servers = {name: make_server(directory, name) for name in ("a", "b")}
        self.host = dict.fromkeys(self.targets, "a")
        self.records: list[tuple[str, dict[str, Any]]] = []
        self.unseen: Counter[tuple[str, str, str]] = Counter()
        self.seen: dict[tuple[str, str], dict[str, tuple[int, int, int]]] = {}
        self.dropped: dict[tuple[str, str], dict[str, tuple[int, int, int]]] = {}
        self.resets: list[str] = []

    def work(self, begin: float) -> None:
        """Have some of the jobs work in the time up to the next observation."""
        hour = int((begin - BEGIN) / HOUR)
        for name, (target, _) in self.targets.items():
            if self.chance.random() < 0.1:
                self.drop(name, self.chance.choice([*target.entries, ""]), begin)
            for moment in sorted(self.chance.uniform(1, EVERY - 1) for _ in range(6)):
                # Some jobs pause for longer than the servers remember them.
                job = hour * 3 + self.chance.randrange(6)
                if (job + hour) % 3 == 0:
                    continue
                entry = f"{1000 + job}:{5000 + job % 7}:c{job % 4}"
                operation = self.chance.choice(OPERATIONS[target.kind])
                size = self.chance.choice((4096, 1 << 20)) if operation in BYTES else 20
                target.do(entry, operation, self.chance.randrange(1, 50), size, now=begin + moment)

    def drop(self, name: str, entry: str, now: float) -> None:
        """Have an administrator write an id to job_stats; its job may go on at once."""
        target, _ = self.targets[name]
        if entry in target.entries:
            self.forget(name, [entry])
            target.reset(entry)
            if self.chance.random() < 0.8:
                operation = self.chance.choice(OPERATIONS[target.kind])
                target.do(entry, operation, self.chance.randrange(1, 5000), 4096, now=now + 0.5)

    def forget(self, name: str, entries: list[str]) -> None:
        """Count what was done and is dropped before anybody has seen it."""
        target, _ = self.targets[name]
        for entry in entries:
            seen = self.seen.pop((name, entry), {})
            for operation, counter in target.entries[entry].counters.items():
                samples, size, _ = seen.get(operation, (0, 0, 0))
                self.unseen[name, entry, operation] += (
                    counter.sum - size if operation in BYTES else counter.samples - samples
                )
            self.dropped[name, entry] = seen

    def cleanup(self, now: float) -> None:
        for name, (target, _) in self.targets.items():
            before = dict(target.entries)
            target.cleanup(now)
            gone = [entry for entry in before if entry not in target.entries]
            target.entries, after = before, target.entries
            self.forget(name, gone)
            target.entries = after

    def fail_over(self, name: str, host: str) -> None:
        target, _ = self.targets[name]
        self.forget(name, [*target.entries])
        target.failover()
        self.host[name] = host

    def observe(self, now: float, *, fails: str = "") -> None:
        for server in self.servers.values():
            texts = {
                f"{target.kind}/{name}": None if name == fails else target.text(layout, now)
                for name, (target, layout) in self.targets.items()
                if self.host[name] == server.name
            }
            for record in server.observe(now, texts):
                self.records.append((server.name, record))
                if "reset" in record:
                    self.resets.append(record["reset"])
        for name, (target, layout) in self.targets.items():
            if name == fails:
                continue
            for entry, live in target.entries.items():
                now_seen = {
                    operation: (counter.samples, counter.sum, counter.sumsq)
                    for operation, counter in live.counters.items()
                }
                before = self.dropped.get((name, entry), {})
                # Without a start time, one that has grown beyond what it was looks the same.
                if layout == "2.14" and all(
                    operation in now_seen
                    and all(a >= b for a, b in zip(now_seen[operation], numbers, strict=True))
                    for operation, numbers in before.items()
                ):
                    for operation, (samples, size, _) in before.items():
                        is_bytes = operation in BYTES
                        self.unseen[name, entry, operation] += size if is_bytes else samples
                self.seen[name, entry] = now_seen
        self.dropped = {key: seen for key, seen in self.dropped.items() if key[0] == fails}

    def integrated(self) -> dict[tuple[str, str, str], int]:
        """Add up the records as a receiver does."""
        totals: Counter[tuple[str, str, str]] = Counter()
        last: dict[tuple[str, str, str], dict[str, int]] = {}
        for server, record in self.records:
            key = (server, record["target"], record["entry_id"])
            operations = (*OPERATIONS["obdfilter"], *OPERATIONS["mdt"])
            now = {operation: record.get(operation, 0) for operation in operations}
            before = last.get(key)
            last[key] = now
            if record["snapshot_time"] is None or before is None:
                continue
            for operation, value in now.items():
                old = before[operation]
                grown = value if record.get("reset") in RESETS or value < old else value - old
                totals[(*key[1:], operation)] += grown
        return {key: total for key, total in totals.items() if total}

    def truth(self) -> dict[tuple[str, str, str], int]:
        """Return what was done, without what nobody could see."""
        totals: dict[tuple[str, str, str], int] = defaultdict(int)
        for name, (target, _) in self.targets.items():
            for entry, operations in target.truth.items():
                for operation, total in operations.items():
                    done = total.sum if operation in BYTES else total.samples
                    totals[name, entry, operation] = done - self.unseen[name, entry, operation]
        return {key: total for key, total in totals.items() if total}

    def live(self) -> Iterator[int]:
        """Live through the day; yield the number of each step once it is observed."""
        self.observe(BEGIN)
        for step in range(STEPS):
            begin = BEGIN + step * EVERY
            self.work(begin)
            now = begin + EVERY
            if step % 3 == 0:
                self.cleanup(now)
            match 24 * step / STEPS:
                case 5 | 13:
                    self.servers["a"].restart()
                case 10:
                    self.fail_over("fs-OST0000", "b")
                case 15:
                    self.fail_over("fs-OST0000", "a")
                case 20:
                    self.forget("fs-OST0001", [*self.targets["fs-OST0001"][0].entries])
                    self.targets["fs-OST0001"][0].clear()
                case _:
                    pass
            self.observe(now, fails="fs-OST0001" if step in (210, 211) else "")
            yield step
