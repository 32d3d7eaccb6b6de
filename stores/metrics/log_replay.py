"""Replay of the log into a store at its start."""

from __future__ import annotations

import mmap
import os
import struct
from array import array
from functools import partial
from itertools import groupby, pairwise, repeat
from operator import eq
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ccagent.log import logger
from ccagent.queue.record_log import FILE_ERRORS, DamagedPart, describe_error, read_records
from ccagent.service.private_files import open_private
from ccagent.stores.metrics.log_format import (
    FREED,
    GROUP,
    MAGIC,
    POINT,
    POINTS,
    RUNS,
    decode_freed,
    decode_group,
    decode_runs,
)
from ccagent.stores.metrics.log_writer import Segment, list_segments

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ccagent.stores.metrics.groups import Path, SeriesGroup, StoredSeries
    from ccagent.stores.metrics.log_format import GroupRecord
    from ccagent.stores.metrics.store import MetricStore, SeriesRun

_WIDTH = 8


class _Columns(NamedTuple):
    """Series of a described group.

    first: first column in `group` if all are consecutive; else -1, and `places` has the series.
    """

    group: SeriesGroup
    first: int
    width: int
    places: list[StoredSeries]


class Replay:
    """Writes the values of segments into a store. Damaged parts are logged and skipped."""

    def __init__(self, store: MetricStore) -> None:
        self.points = 0
        self.damaged = 0
        """Number of damaged bytes."""
        self._store = store
        self._described: dict[int, GroupRecord] = {}
        self._texts: set[bytes] = set()
        """Descriptions that were read."""
        self._groups: dict[int, _Columns] = {}
        self._newest = 0

    def read_directory(self, directory: str, oldest: int) -> list[Segment]:
        """Read all segments of a directory. Skip values older than `oldest`."""
        found: list[Segment] = []
        for _, path in list_segments(directory):
            try:
                found.append(self.read_segment(path, oldest))
            except FILE_ERRORS as error:
                logger.error(
                    "log %s: %s; its values are missing", path, describe_error(error, path)
                )
        return found

    def read_segment(self, path: str, oldest: int) -> Segment:
        """Read one segment. Raise OSError or NotPermittedError."""
        self._groups.clear()
        self._described.clear()
        self._texts.clear()
        self._newest = 0
        with open(open_private(path, os.O_RDONLY), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size:
                # The mapping is closed with its last memoryview.
                data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
                self._read(path, data, oldest)
        return Segment(path, size, self._newest)

    def _read(self, path: str, data: memoryview, oldest: int) -> None:
        begin = len(MAGIC)
        if bytes(data[:begin]) != MAGIC:
            begin = 0
            logger.warning("log %s: the start is damaged; reading the rest", path)
        # All descriptions are read before the values: a group that gets further columns is made
        # once, and a second copy is known where the first one is damaged.
        begins, sizes = array("q"), array("q")
        for record in read_records(data, begin):
            if isinstance(record, DamagedPart):
                self.damaged += record.size
                logger.warning(
                    "log %s: %d bytes at %d are damaged; reading the rest",
                    path, record.size, record.offset,
                )  # fmt: skip
            elif record.payload[0] != GROUP or not self._learn(record.payload[1:]):
                begins.append(record.trailer - len(record.payload))
                sizes.append(len(record.payload))
        for begin, size in zip(begins, sizes, strict=True):
            payload = data[begin : begin + size]
            try:
                self._take(payload, oldest)
            except (ValueError, KeyError, IndexError, struct.error) as error:
                self.damaged += size
                # Not the error itself: with its frames it would be garbage that only a collection
                # removes, and Python 3.11.7 crashes on iterators over a mapping in there.
                is_unknown = isinstance(error, KeyError)
                reason = "its series are not described" if is_unknown else str(error)
                logger.warning("log %s: a record can't be read: %s", path, reason)

    def _take(self, payload: memoryview, oldest: int) -> None:
        kind = payload[0]
        if kind == RUNS:
            self._take_runs(payload, oldest)
            return
        payload = payload[1:]
        if kind == POINTS:
            self._take_points(np.frombuffer(payload, POINT), oldest)
        elif kind == GROUP:
            decode_group(payload)  # raises the reason why it was not learned
        elif kind == FREED:
            freed = decode_freed(payload)
            for selector in freed.selectors:
                self._store.free(selector, freed.until)
            self._groups.clear()  # groups with later values are searched again

    def _take_runs(self, payload: memoryview, oldest: int) -> None:
        time, runs, end = decode_runs(payload)
        self._newest = max(self._newest, time)
        if time < oldest:
            return
        pool, size = self._store.pool, len(payload)
        for number, first, count in runs:
            columns = self._columns(number, first + count)
            begin, end = end, end + count * _WIDTH
            if columns.first >= 0:
                if end > size:
                    raise ValueError("more values than described")
                columns.group.write_run(pool, time, columns.first + first, payload[begin:end])
                self.points += count
            else:
                values = np.frombuffer(payload[begin:end], "<f8").tolist()
                self._write(columns.places[first : first + count], time, values)

    def _take_points(self, points: NDArray[np.void], oldest: int) -> None:
        """Write single values: all of one group and time at once."""
        groups, times = points["group"], points["time"]
        changes = (groups[1:] != groups[:-1]) | (times[1:] != times[:-1])
        bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), len(points)]
        for begin, end in pairwise(bounds):
            time = int(times[begin])
            self._newest = max(self._newest, time)
            if time < oldest:
                continue
            numbers, values = points["column"][begin:end], points["value"][begin:end]
            columns = self._columns(int(groups[begin]), int(numbers.max()) + 1)
            if columns.first >= 0:
                row = columns.group.open_row(self._store.pool, time)
                np.asarray(row)[numbers + columns.first] = values
                self.points += end - begin
                continue
            places = [columns.places[int(column)] for column in numbers.tolist()]
            self._write(places, time, values.tolist())

    def _columns(self, number: int, least: int) -> _Columns:
        """Return at least this number of columns of a group. Raise KeyError, ValueError."""
        columns = self._groups.get(number)
        if columns is None or columns.width < least:
            columns = self._groups[number] = self._find(self._described[number])
            if columns.width < least:
                raise ValueError("more values than columns")
        return columns

    def _learn(self, payload: memoryview) -> bool:
        """Take a description, unless it is a second copy. Return whether it is valid.

        A group gets further columns, and so a longer description.
        """
        text = bytes(payload)
        if text in self._texts:
            return True
        try:
            described = decode_group(payload)
        except ValueError:
            return False
        self._texts.add(text)
        known = self._described.get(described.number)
        if known is None or known.width() < described.width():
            self._described[described.number] = described
        return True

    def _write(self, places: list[StoredSeries], time: int, values: list[float]) -> None:
        for place, value in zip(places, values, strict=True):
            place.group.write_value(self._store.pool, time, place.column, value)
            self.points += 1

    def _find(self, described: GroupRecord) -> _Columns:
        """Return the series of a group. Add missing series."""
        known: dict[Path, set[str]] = {}
        missing: list[SeriesRun] = []
        for path, metrics in described.levels:
            if path not in known:
                known[path] = set(self._store.series_at(path))
            new = [one for one in dict.fromkeys(metrics) if one not in known[path]]
            known[path].update(new)
            if new:
                missing.append((path, new))
        if missing:
            if described.frequency <= 0:
                raise ValueError("a time step that is not positive")
            count = sum([len(metrics) for _, metrics in missing])
            made = self._restore(missing, described.start, described.frequency)
            if len(made) == 1 and count == described.width():
                return _Columns(*made[0], count, [])
        places: list[StoredSeries] = []
        for path, metrics in described.levels:
            series = self._store.series_at(path)
            places += [series[metric] for metric in metrics]
        group, first = places[0]
        expected = zip(repeat(group), range(first, first + len(places)), strict=False)
        is_in_order = all(map(eq, places, expected))
        return _Columns(group, first if is_in_order else -1, len(places), places)

    def _restore(
        self, missing: list[SeriesRun], start: int, frequency: int
    ) -> list[tuple[SeriesGroup, int]]:
        """Add series with their configured time steps. Return a group and first column a step."""
        configured = partial(self._store.changed_steps.configured, stored=frequency)
        of_step: dict[int, list[SeriesRun]] = {}
        for path, metrics in missing:
            for step, same in groupby(metrics, configured):
                of_step.setdefault(step, []).append((path, [*same]))
        found: list[tuple[SeriesGroup, int]] = []
        for step, runs in of_step.items():
            begin = start if step == frequency else start + frequency // 2 - step // 2
            found.append(self._store.place(runs, begin, step))
        return found
