"""Scrapes: all collectors within a time limit; one that fails or hangs costs its own families."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from ccagent.errors import CcagentError, NotHereError, ProgramError
from ccagent.log import logger
from ccagent.transports.prometheus.exposition import SampleEncoder
from ccagent.transports.prometheus.family import Family, gauge

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ccagent.machine.node import Node
    from ccagent.transports.prometheus.collector import Collector
    from ccagent.transports.prometheus.exposition import Block

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
"""Seconds for which one collector may hold up the others; then they go on without it."""


class CollectorRun:
    """A collector with the encoder of its samples and the outcome of its last reading.

    seconds: duration. is_successful: whether it could read something. is_running: a reading that
    hangs is left alone, and no other is started.
    """

    def __init__(self, collector: Collector, group: str) -> None:
        self.collector = collector
        self.group = group
        self.seconds = 0.0
        self.is_successful = False
        self.is_running = False
        self.blocks: list[Block] = []
        self._encoder = SampleEncoder()

    @property
    def name(self) -> str:
        """The name of the collector."""
        return self.collector.name

    def run(self, node: Node) -> None:
        """Read once. Never raises; what nobody foresaw is logged with its traceback."""
        begin = time.perf_counter()
        blocks: list[Block] = []
        is_successful = False
        try:
            blocks = self._encoder.encode(self.collector.collect(node))
            is_successful = True
        except NotHereError as error:
            logger.debug("exporter: %s: %s", self.name, error)
        except CcagentError as error:
            logger.warning("exporter: %s: %s", self.name, error)
        except Exception:  # noqa: BLE001 - the others go on
            logger.exception("exporter: %s: unforeseen error", self.name)
        self.blocks = blocks
        self.is_successful = is_successful
        self.seconds = time.perf_counter() - begin


class _Round:
    """Runs collectors one after the other in a thread, until it is abandoned."""

    def __init__(self, runs: Sequence[CollectorRun], node: Node, lock: threading.Lock) -> None:
        self._left = [*reversed(runs)]
        self._node = node
        self._lock = lock
        self._changed = threading.Condition(lock)
        self._is_abandoned = False
        self.current: CollectorRun | None = None
        self.done: list[tuple[CollectorRun, list[Block], bool, float]] = []
        try:
            threading.Thread(target=self._work, name="exporter-collect", daemon=True).start()
        except RuntimeError as error:
            raise ProgramError(f"exporter: no thread for a scrape: {error}") from error

    def wait(self, deadline: float) -> list[CollectorRun]:
        """Wait for the end, or until one takes too long; return those that were not begun."""
        with self._changed:
            while True:
                count = len(self.done)
                limit = min(deadline, time.monotonic() + PATIENCE)
                self._changed.wait_for(
                    lambda count=count: self._is_over or len(self.done) > count,
                    max(0.0, limit - time.monotonic()),
                )
                if self._is_over:
                    return []
                if len(self.done) == count:  # one takes long, or the time is over
                    self._is_abandoned = True
                    left, self._left = self._left, []
                    return [*reversed(left)]

    @property
    def _is_over(self) -> bool:
        return not self._left and self.current is None

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._left:
                    self._changed.notify_all()
                    return
                run = self.current = self._left.pop()
                run.is_running = True
            run.run(self._node)
            with self._changed:
                run.is_running = False
                self.done.append((run, run.blocks, run.is_successful, run.seconds))
                run.blocks = []
                self.current = None
                self._changed.notify_all()
                if self._is_abandoned:
                    return


class Scraper:
    """Reads all collectors when it is asked. Any thread may ask; they take turns."""

    def __init__(self, node: Node, collectors: Mapping[str, Sequence[Collector]]) -> None:
        self._node = node
        self._runs = [CollectorRun(c, group) for group, each in collectors.items() for c in each]
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._encoder = SampleEncoder()

    @property
    def names(self) -> list[str]:
        """The names of the collectors."""
        return [run.name for run in self._runs]

    def scrape(
        self,
        seconds: float,
        include: Collection[str] = (),
        exclude: Collection[str] = (),
    ) -> list[Block]:
        """Return the families of the collectors that answer within `seconds`."""
        deadline = time.monotonic() + seconds
        chosen = [
            run
            for run in self._runs
            if (not include or run.name in include) and run.name not in exclude
        ]
        if not self._turn.acquire(timeout=max(0.0, seconds)):
            return self._encode_outcomes(chosen, {})
        try:
            return self._scrape(chosen, deadline)
        finally:
            self._turn.release()

    def _scrape(self, chosen: list[CollectorRun], deadline: float) -> list[Block]:
        with self._lock:
            left = [run for run in chosen if not run.is_running]
        rounds: list[_Round] = []
        while left and time.monotonic() < deadline:
            rounds.append(_Round(left, self._node, self._lock))
            left = rounds[-1].wait(deadline)
        self._wait_for_slow(rounds, deadline)
        with self._lock:
            done = {each[0]: each for round_ in rounds for each in round_.done}
        for run in chosen:
            if run not in done:
                logger.warning("exporter: %s: not finished in time; left out", run.name)
        blocks: dict[Family, str] = {}
        for run in chosen:
            for family, lines in done[run][1] if run in done else ():
                blocks[family] = blocks.get(family, "") + lines
        outcomes = {run: (each[2], each[3]) for run, each in done.items()}
        return [*blocks.items(), *self._encode_outcomes(chosen, outcomes)]

    def _wait_for_slow(self, rounds: list[_Round], deadline: float) -> None:
        """Wait for collectors that were slow, while there is time."""
        for each in rounds:
            while each.current is not None and time.monotonic() < deadline:
                time.sleep(0.005)

    def _encode_outcomes(
        self, chosen: list[CollectorRun], outcomes: Mapping[CollectorRun, tuple[bool, float]]
    ) -> list[Block]:
        missing = (False, 0.0)
        found: list[Block] = []
        for group in ("", _NODE):
            runs = [run for run in chosen if (run.group == _NODE) == (group == _NODE)]
            found += self._encoder.encode(
                [
                    (
                        _DURATIONS[group],
                        [((run.name,), outcomes.get(run, missing)[1]) for run in runs],
                    ),
                    (
                        _SUCCESSES[group],
                        [((run.name,), int(outcomes.get(run, missing)[0])) for run in runs],
                    ),
                ]
            )
        return found

    def close(self) -> None:
        """Close the collectors that do not hang."""
        for run in self._runs:
            if not run.is_running:
                run.collector.close()

