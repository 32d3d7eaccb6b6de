"""Scrapes of all collectors within a time limit.

A collector that fails or hangs only loses its own families.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import CcagentError, NotHereError, ProgramError
from ccagent.exporter.exposition import SampleEncoder, WrittenFamily, gauge, merge_blocks
from ccagent.log import logger
from ccagent.machine.descriptors import KeptFiles

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ccagent.exporter.collector import Collector
    from ccagent.exporter.exposition import Block, FamilyRows, Labels
    from ccagent.machine.node import Node

_NODE = "node_exporter"
_DURATIONS = {
    _NODE: gauge(
        "node_scrape_collector_duration_seconds",
        "node_exporter: Duration of a collector scrape.", "collector",
    ),
    "": gauge(
        "ccagent_scrape_collector_duration_seconds",
        "Duration of the last reading of a collector.", "collector",
    ),
}  # fmt: skip
_SUCCESSES = {
    _NODE: gauge(
        "node_scrape_collector_success",
        "node_exporter: Whether a collector succeeded.", "collector",
    ),
    "": gauge(
        "ccagent_scrape_collector_success",
        "1 if a collector could read something, 0 if it failed, was too slow or has nothing to"
        " read here.",
        "collector",
    ),
}  # fmt: skip

PATIENCE = 0.25
"""Seconds for which one collector may delay the others. They then continue in a new thread."""
_SLOW_AFTER = 1.0
"""Seconds after which a reading counts as hanging: later scrapes do not wait for the reading."""
_LOOK_EVERY = 0.005


class Outcome(NamedTuple):
    """Outcome of a reading. seconds: its duration. end: its end by the monotonic clock."""

    blocks: list[Block]
    is_successful: bool
    seconds: float
    end: float


_MISSING = Outcome([], False, 0.0, 0.0)


class CollectorRun:
    """A collector with the encoder of its samples and the outcome of its last reading.

    begun: start of the running reading by the monotonic clock; None if none runs. While a reading
    hangs, no other reading of this collector is started.
    """

    def __init__(self, collector: Collector, group: str) -> None:
        self.collector = collector
        self.name = collector.name
        self.group = group
        self.begun: float | None = None
        self.outcome = _MISSING
        self.labels = (self.name,)
        self._closing = threading.Event()
        self._encoder = SampleEncoder()

    def run(self, node: Node) -> None:
        """Read once. Must not raise: errors are logged, unforeseen errors with a traceback."""
        if self._closing.is_set():
            self.outcome = Outcome([], False, 0.0, time.monotonic())
            return
        begin = time.monotonic()
        blocks: list[Block] = []
        is_successful = False
        try:
            blocks = self._encoder.encode(self.collector.collect(node))
            is_successful = True
        except NotHereError as error:
            logger.debug("exporter: %s: %s", self.name, error)
        except CcagentError as error:
            logger.warning("exporter: %s: %s", self.name, error)
        except Exception:  # noqa: BLE001 - other collectors must continue
            logger.exception("exporter: %s: unforeseen error", self.name)
        end = time.monotonic()
        self.outcome = Outcome(blocks, is_successful, end - begin, end)
        if self._closing.is_set():
            self.collector.close()

    def close(self) -> None:
        """Close the collector, after the running reading if one runs."""
        self._closing.set()
        if self.begun is None:
            self.collector.close()


class _Round:
    """Collectors that a thread runs one after the other, until one takes too long."""

    def __init__(self, runs: Sequence[CollectorRun], node: Node) -> None:
        self._left = [*reversed(runs)]
        self._node = node
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._done = 0
        self._count = len(runs)
        self._since = time.monotonic()

    @property
    def is_done(self) -> bool:
        """Return whether the thread can run another round."""
        return self._done == self._count

    def wait(self, deadline: float) -> list[CollectorRun]:
        """Wait until all have finished or one takes too long. Return the collectors not started.

        The thread is not woken after each collector.
        """
        with self._changed:
            while not self.is_done:
                limit = min(deadline, self._since + PATIENCE) - time.monotonic()
                if limit <= 0:
                    left, self._left = self._left, []
                    return [*reversed(left)]
                self._changed.wait(limit)
        return []

    def work(self) -> None:
        """Run the collectors that `wait` has not returned."""
        while True:
            with self._lock:
                if not self._left:
                    return
                run = self._left.pop()
                run.begun = self._since = time.monotonic()
            run.run(self._node)
            with self._lock:
                run.begun = None
                self._done += 1
                if self.is_done:
                    self._changed.notify_all()


def _start_thread() -> queue.SimpleQueue[_Round | None]:
    """Start a thread for rounds and return their queue; None ends it. Raise ProgramError."""
    rounds: queue.SimpleQueue[_Round | None] = queue.SimpleQueue()

    def work() -> None:
        while (each := rounds.get()) is not None:
            each.work()
            del each  # it refers to the node's files

    try:
        threading.Thread(target=work, name="exporter-collect", daemon=True).start()
    except RuntimeError as error:
        raise ProgramError(f"exporter: no thread for a scrape: {error}") from error
    return rounds


def _leave_out_known(blocks: list[Block], known: list[Block]) -> list[Block]:
    """Return the blocks whose family names are not in `known`; log the others.

    Prometheus rejects a scrape that has a family twice.
    """
    names = {family.name for family, _ in known}
    found: list[Block] = []
    for family, lines in blocks:
        if family.name in names:
            logger.warning("exporter: textfile: %s: ccagent has this family itself", family.name)
            continue
        names.add(family.name)
        found.append((family, lines))
    return found


class Scraper:
    """A reader of all collectors. Scrapes of several threads run one after the other."""

    def __init__(self, node: Node, collectors: Mapping[str, Sequence[Collector]]) -> None:
        self._node = node
        self._runs = [CollectorRun(c, group) for group, each in collectors.items() for c in each]
        self._turn = threading.Lock()
        self._rounds: queue.SimpleQueue[_Round | None] | None = None
        self._is_closed = False
        self._encoder = SampleEncoder()
        self._kept: KeptFiles | None = None

    @property
    def names(self) -> list[str]:
        """The distinct names of the collectors."""
        return [*dict.fromkeys(run.name for run in self._runs)]

    def scrape(
        self, seconds: float, include: Collection[str] = (), exclude: Collection[str] = ()
    ) -> list[Block]:
        """Return the families of the collectors that answer within `seconds`."""
        begin = time.monotonic()
        deadline = begin + seconds
        chosen = [
            run
            for run in self._runs
            if (not include or run.name in include) and run.name not in exclude
        ]
        if self._turn.acquire(timeout=max(0.0, seconds)):
            try:
                awaited = self._read(chosen, deadline)
            finally:
                self._turn.release()
            while time.monotonic() < deadline and any(r.outcome.end < begin for r in awaited):
                time.sleep(_LOOK_EVERY)
        return self._collect(chosen, begin)

    def _read(self, chosen: list[CollectorRun], deadline: float) -> list[CollectorRun]:
        """Run the collectors that are not running. Return the collectors that do not hang."""
        now = time.monotonic()
        left: list[CollectorRun] = []
        awaited: list[CollectorRun] = []
        for run in chosen:
            begun = run.begun
            if begun is None:
                left.append(run)
            if begun is None or now - begun < _SLOW_AFTER:
                awaited.append(run)
        kept: KeptFiles | None = self._kept or KeptFiles(self._node, short=0)
        node = self._node.snapshot(kept)
        while left and time.monotonic() < deadline:
            left = self._run(_Round(left, node), deadline)
            if self._rounds is None:  # the thread that continues may be in one of the files
                node.kept = kept = None
        if kept is not None:
            kept.sweep()
        self._kept = None if self._is_closed else kept
        node.parsed = node.kept = None  # collectors may keep the snapshot, or still run
        return awaited

    def _run(self, current: _Round, deadline: float) -> list[CollectorRun]:
        """Run a round. Return the collectors that are left because one takes too long.

        The thread is kept for the next round: starting one takes as long as some collectors.
        """
        rounds = self._rounds = self._rounds or _start_thread()
        rounds.put(current)
        left = current.wait(deadline)
        if self._is_closed or not current.is_done:
            self._end_thread()
        return left

    def _end_thread(self) -> None:
        """End the thread after its round."""
        rounds, self._rounds = self._rounds, None
        if rounds is not None:
            rounds.put(None)

    def _collect(self, chosen: list[CollectorRun], begin: float) -> list[Block]:
        blocks: list[Block] = []
        foreign: list[Block] = []
        seconds: dict[str, list[tuple[Labels, float]]] = {"": [], _NODE: []}
        successes: dict[str, list[tuple[Labels, float]]] = {"": [], _NODE: []}
        for run in chosen:
            outcome = run.outcome
            if outcome.end < begin:
                logger.warning("exporter: %s: not finished in time; left out", run.name)
                outcome = _MISSING
            (foreign if run.collector.is_foreign else blocks).extend(outcome.blocks)
            group = _NODE if run.group == _NODE else ""
            seconds[group].append((run.labels, round(outcome.seconds, 6)))
            successes[group].append((run.labels, int(outcome.is_successful)))
        families: list[FamilyRows] = []
        for group, rows in seconds.items():
            families += [(_DURATIONS[group], rows), (_SUCCESSES[group], successes[group])]
        found = [*merge_blocks(blocks), *self._encoder.encode(families)]
        if any(isinstance(family, WrittenFamily) for family, _ in foreign):
            foreign = _leave_out_known(foreign, found)
        return [*found, *foreign]

    def close(self) -> None:
        """Close the collectors and prevent further readings."""
        self._is_closed = True
        self._kept = None
        self._end_thread()
        for run in self._runs:
            run.close()
