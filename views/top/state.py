"""The state of the screen, its changes by keys, and the rows that it selects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec

from ccagent.views.top.snapshot import TopCard, TopJob, TopMount, TopProcess, TopSnapshot

TopView = Literal["jobs", "processes", "cards", "mounts"]
R = TypeVar("R")


class _Rows(msgspec.Struct, Generic[R], frozen=True):
    """The rows of a view: their source, the text for the filter, sort keys by column, ties."""

    of: Callable[[TopSnapshot], Sequence[R]]
    text: Callable[[R], str]
    keys: dict[str, Callable[[R], float]]
    ties: Callable[[R], tuple[object, ...]]


_ROWS: dict[TopView, _Rows[Any]] = {
    "jobs": _Rows[TopJob](
        lambda snapshot: snapshot.jobs,
        lambda job: f"{job.job or '(system)'} {job.user} {job.name} {job.partition}",
        {
            "CPU": lambda job: job.cores,
            "MEM": lambda job: job.memory,
            "GPU": lambda job: job.gpu if job.gpu is not None else -1.0,
            "READ": lambda job: job.read or 0.0,
            "WRITE": lambda job: job.written or 0.0,
            "TIME": lambda job: job.elapsed or 0.0,
            "JOB": lambda job: -job.job,
        },
        lambda job: (-job.job,),
    ),
    "processes": _Rows[TopProcess](
        lambda snapshot: snapshot.processes,
        lambda one: f"{one.pid} {one.user} {one.command}",
        {
            "CPU": lambda one: one.cpu,
            "MEM": lambda one: one.memory,
            "GPU": lambda one: one.gpu if one.gpu is not None else -1.0,
            "READ": lambda one: one.read or 0.0,
            "WRITE": lambda one: one.written or 0.0,
            "TIME": lambda one: one.cpu_time,
            "PID": lambda one: -one.pid,
        },
        lambda one: (-one.pid,),
    ),
    "cards": _Rows[TopCard](
        lambda snapshot: snapshot.cards,
        lambda card: f"{card.index} {card.job} {card.user}",
        {
            "GPU": lambda card: -card.index,
            "MEM": lambda card: card.memory,
            "POWER": lambda card: card.power,
            "JOB": lambda card: -card.job,
        },
        lambda card: (-card.index,),
    ),
    "mounts": _Rows[TopMount](
        lambda snapshot: snapshot.mounts,
        lambda one: f"{one.job or '(system)'} {one.point} {one.type} {one.source}",
        {
            "I/O": lambda one: one.read + one.written,
            "READ": lambda one: one.read,
            "WRITE": lambda one: one.written,
            "OPS": lambda one: one.operations,
            "JOB": lambda one: -one.job,
        },
        lambda one: (one.operations, -one.job, one.point),
    ),
}

SORTS: dict[TopView, tuple[str, ...]] = {view: tuple(rows.keys) for view, rows in _ROWS.items()}
"""Sort columns by view. The first column is the default."""

INTERVALS = (1.0, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0)
"""Seconds between readings. Shorter intervals cost CPU time, and slow down GPUs."""

_LONGEST = 60
_OF_SCREEN = frozenset({"RESIZE", "REDRAW"})
MOVES = frozenset({"UP", "DOWN", "PGUP", "PGDN", "HOME", "END"})
"""Keys that only move the selection."""

NAMES = {
    "F1": "?", "F3": "/", "F4": "/", "F5": "t", "F6": ">", "F10": "q", "h": "?", "k": "UP",
    "j": "DOWN", ",": "<", ".": ">", "r": "I", "G": "g", "ESC": "BACK", "LEFT": "<",
    "RIGHT": ">",
}  # fmt: skip
"""Synonyms of keys."""


class ViewState(NamedTuple):
    """The state of the screen.

    job: the opened job, None for all. row: index of the selected row. sorts: column by view.
    is_reversed: smallest first. filter: text that a row must contain; is_typing: the user is
    typing it. interval: seconds. has_ended: the user has quit. has_meters: a meter per hwthread.
    hides_ended: no rows of ended processes.
    """

    view: TopView = "jobs"
    job: int | None = None
    row: int = 0
    sorts: tuple[tuple[TopView, str], ...] = ()
    is_reversed: bool = False
    filter: str = ""
    is_typing: bool = False
    is_tree: bool = False
    is_paused: bool = False
    has_help: bool = False
    interval: float = 2.0
    has_ended: bool = False
    has_meters: bool = False
    hides_ended: bool = False

    @property
    def sort(self) -> str:
        """Return the sort column of the current view."""
        return dict(self.sorts).get(self.view, SORTS[self.view][0])

    def begin(self, *, has_jobs: bool) -> ViewState:
        """Return the initial state: a node without jobs shows its processes."""
        return self if has_jobs or self.view != "jobs" else self._replace(view="processes")

    def press(self, key: str, rows: int, page: int, selected: int | None = None) -> ViewState:
        """Return the state after a key: a character, or UP, DOWN, ENTER, BACK, ESC, F1 and so on.

        rows: of the view. page: number of visible rows. selected: job of the selected row. RESIZE
        and REDRAW do not change the state.
        """
        if key in _OF_SCREEN:
            return self
        if self.is_typing:
            return self._type(key)
        if self.has_help:
            return self._replace(has_help=False, has_ended=key in {"q", "F10"})
        key = NAMES.get(key, key)
        places = {
            "UP": self.row - 1, "DOWN": self.row + 1, "PGUP": self.row - page,
            "PGDN": self.row + page, "HOME": 0, "END": rows - 1,
        }  # fmt: skip
        if key in places:
            return self._replace(row=max(0, min(rows - 1, places[key])))
        if key == "ENTER" and self.view == "jobs" and selected is not None:
            return self._replace(job=selected, view="processes", row=0)
        return _CHANGES[key](self) if key in _CHANGES else self

    def _type(self, key: str) -> ViewState:
        match key:
            case "ENTER":
                return self._replace(is_typing=False, row=0)
            case "ESC":
                return self._replace(is_typing=False, filter="", row=0)
            case "BACK":
                return self._replace(filter=self.filter[:-1])
            case _ if len(key) == 1 and key.isprintable() and len(self.filter) < _LONGEST:
                return self._replace(filter=self.filter + key, row=0)
            case _:
                return self


def _switch(state: ViewState, view: TopView) -> ViewState:
    """Return the state with the given view; with the view of jobs if it is the current view."""
    return _show_jobs(state) if state.view == view else state._replace(view=view, row=0)


def _show_jobs(state: ViewState) -> ViewState:
    return state._replace(view="jobs", job=None, row=0)


def _turn(state: ViewState, step: int) -> ViewState:
    """Return the state sorted by a neighbouring column."""
    columns = SORTS[state.view]
    return _sort_by(state, columns[(columns.index(state.sort) + step) % len(columns)])


def _sort_by(state: ViewState, column: str) -> ViewState:
    if column not in SORTS[state.view]:
        return state
    return state._replace(sorts=tuple({**dict(state.sorts), state.view: column}.items()), row=0)


_CHANGES: dict[str, Callable[[ViewState], ViewState]] = {
    "?": lambda state: state._replace(has_help=True),
    "q": lambda state: state._replace(has_ended=True),
    "/": lambda state: state._replace(is_typing=True, filter=""),
    " ": lambda state: state._replace(is_paused=not state.is_paused),
    "t": lambda state: state._replace(is_tree=not state.is_tree, view="processes", row=0),
    "c": lambda state: state._replace(has_meters=not state.has_meters),
    "e": lambda state: state._replace(hides_ended=not state.hides_ended, row=0),
    "I": lambda state: state._replace(is_reversed=not state.is_reversed, row=0),
    "p": lambda state: _switch(state, "processes"),
    "g": lambda state: _switch(state, "cards"),
    "m": lambda state: _switch(state, "mounts"),
    "BACK": lambda state: state._replace(filter="", row=0) if state.filter else _show_jobs(state),
    "<": lambda state: _turn(state, -1),
    ">": lambda state: _turn(state, 1),
    "+": lambda state: state._replace(
        interval=next((one for one in INTERVALS if one > state.interval), INTERVALS[-1])
    ),
    "-": lambda state: state._replace(
        interval=next((one for one in INTERVALS[::-1] if one < state.interval), INTERVALS[0])
    ),
    "P": lambda state: _sort_by(state, "CPU"),
    "M": lambda state: _sort_by(state, "MEM"),
    "T": lambda state: _sort_by(state, "TIME"),
    "N": lambda state: _sort_by(state, "PID" if state.view == "processes" else "JOB"),
}
"""The changes of the state by keys that don't move the selection."""


def select_rows(snapshot: TopSnapshot, state: ViewState) -> list[Any]:
    """Return the filtered and sorted rows of a view; the last are the system, and ended processes.

    The views of processes and mounts have the opened job's rows, else all rows.
    """
    rows, wanted = _ROWS[state.view], state.filter.lower()
    key, job = rows.keys[state.sort], None if state.view in {"jobs", "cards"} else state.job
    found = [
        row
        for row in rows.of(snapshot)
        if job in {None, row.job} and wanted in rows.text(row).lower()
    ]
    found.sort(key=lambda row: (key(row), *rows.ties(row)), reverse=not state.is_reversed)
    if state.view == "jobs":
        found.sort(key=lambda job: not job.job)
    if state.view == "processes":
        found = [one for one in found if not (state.hides_ended and one.is_ended)]
        found.sort(key=lambda one: one.is_ended)
    return found


def as_tree(processes: Sequence[TopProcess]) -> list[tuple[TopProcess, int]]:
    """Return children after their parents, each level in the order of the input, with depths."""
    ended = [one for one in processes if one.is_ended]
    processes = [one for one in processes if not one.is_ended]
    known = {one.pid for one in processes}
    children: dict[int, list[TopProcess]] = {}
    for one in processes:
        children.setdefault(one.ppid if one.ppid in known else -1, []).append(one)
    rows: list[tuple[TopProcess, int]] = []
    left = [(one, 0) for one in reversed(children.pop(-1, []))]
    while left:
        one, depth = left.pop()
        rows.append((one, depth))
        left += [(child, depth + 1) for child in reversed(children.pop(one.pid, []))]
    # Reused process ids may make a process its own ancestor.
    rows += [(one, 0) for each in children.values() for one in each]
    return rows + [(one, 0) for one in ended]
