"""The live screen: curses, keys, periodic readings."""

from __future__ import annotations

import contextlib
import curses
import math
import os
import select
import signal
import sys
import time
from typing import TYPE_CHECKING

from ccagent.errors import NotHereError
from ccagent.views.terminal import is_terminal, is_unicode
from ccagent.views.top.screen import Screen, draw
from ccagent.views.top.state import MOVES, NAMES, ViewState

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import FrameType

    from ccagent.views.top.reader import NodeReader
    from ccagent.views.top.snapshot import TopSnapshot

_KEYS = {
    curses.KEY_UP: "UP", curses.KEY_DOWN: "DOWN", curses.KEY_LEFT: "LEFT",
    curses.KEY_RIGHT: "RIGHT", curses.KEY_HOME: "HOME", curses.KEY_END: "END",
    curses.KEY_PPAGE: "PGUP", curses.KEY_NPAGE: "PGDN", curses.KEY_ENTER: "ENTER",
    curses.KEY_BACKSPACE: "BACK", **{curses.KEY_F0 + n: f"F{n}" for n in range(1, 13)},
}  # fmt: skip
_CHARACTERS = {"\n": "ENTER", "\r": "ENTER", "\x1b": "ESC", "\x7f": "BACK", "\x08": "BACK",
               "\x0c": "REDRAW"}  # fmt: skip
_FIRST_PAUSE = 0.3
"""Seconds before the first screen: rates need two readings."""

_LEAVING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_COLOURS = {"bad": curses.COLOR_RED, "hint": curses.COLOR_YELLOW, "good": curses.COLOR_BLUE}


def run_screen(reader: NodeReader, state: ViewState, *, has_colours: bool) -> None:
    """Show the node until the user quits. Raise NotHereError without a terminal."""
    if not (is_terminal(sys.stdin) and is_terminal(sys.stdout)):
        raise NotHereError("top: standard input or output is not a terminal; try --once")
    with _quiet_errors(), _signals():
        _check_terminal()
        try:
            window = curses.initscr()
            _prepare(window, has_colours=has_colours)
            _Live(window, reader, state).run()
        finally:
            with contextlib.suppress(curses.error):
                curses.endwin()


def _check_terminal() -> None:
    """Raise NotHereError if the terminal is unknown, or can't move the cursor."""
    try:
        curses.setupterm()
        reason = "" if curses.tigetstr("cup") else "it can't move the cursor"
    except curses.error as error:
        reason = str(error)
    if reason:
        term = os.environ.get("TERM", "")
        raise NotHereError(f"top: TERM={term!r} can't be used: {reason}; try --once or --plain")


def _prepare(window: curses.window, *, has_colours: bool) -> None:
    curses.noecho()
    curses.cbreak()
    window.keypad(True)
    curses.set_escdelay(25)
    with contextlib.suppress(curses.error):
        curses.start_color()
        curses.use_default_colors()
        if has_colours and curses.has_colors():
            for number, colour in enumerate(_COLOURS.values(), 1):
                curses.init_pair(number, colour, -1)


class _Live:
    """The loop of readings and keys. A key redraws the screen without a reading."""

    def __init__(self, window: curses.window, reader: NodeReader, state: ViewState) -> None:
        self._window = window
        self._reader = reader
        self._state = state
        # curses writes in the locale's encoding, independent of Python's encoding.
        self._is_ascii = not (is_unicode(sys.stdout.encoding) and is_unicode(window.encoding))
        self._attributes = _attributes()

    def run(self) -> None:
        self._reader.begin()
        time.sleep(_FIRST_PAUSE)
        snapshot = self._reader.read()
        self._state = self._state.begin(has_jobs=any(job.job for job in snapshot.jobs))
        screen = self._show(snapshot)
        due = time.monotonic() + self._state.interval
        # Keys that were not drawn may have changed the selected row, or the rows.
        is_other_row = are_other_rows = False
        while True:
            key = self._wait(due - time.monotonic())
            is_move = NAMES.get(key, key) in MOVES
            if (are_other_rows and is_move) or (is_other_row and key == "ENTER"):
                screen, is_other_row, are_other_rows = self._draw(snapshot), False, False
            before = self._state
            if key == "REDRAW":
                self._window.clearok(True)
            if key:
                self._state = before.press(key, screen.rows, screen.page, screen.job)
                due += self._state.interval - before.interval
            if self._state.has_ended:
                return
            if time.monotonic() >= due:
                if not self._state.is_paused:
                    snapshot = self._reader.read()
                # Missed readings are skipped.
                interval = self._state.interval
                due = max(due + interval, time.monotonic() + interval / 2)
            elif _is_more_typed():
                is_other_row, are_other_rows = True, are_other_rows or not is_move
                continue
            elif self._state == before and not is_other_row and key not in {"RESIZE", "REDRAW"}:
                continue
            screen, is_other_row, are_other_rows = self._show(snapshot), False, False

    def _wait(self, seconds: float) -> str:
        """Return the next key; "" if none is pressed within the time.

        Raise SystemExit if the terminal was closed, as after SIGHUP.
        """
        self._window.timeout(max(0, math.ceil(seconds * 1000)))
        try:
            key = self._window.get_wch()
        except curses.error:
            if _is_gone():
                raise SystemExit(128 + signal.SIGHUP) from None
            return ""
        if isinstance(key, str):
            return _CHARACTERS.get(key, key)
        return "RESIZE" if key == curses.KEY_RESIZE else _KEYS.get(key, "OTHER")

    def _draw(self, snapshot: TopSnapshot) -> Screen:
        height, width = self._window.getmaxyx()
        return draw(snapshot, self._state, width, height, is_ascii=self._is_ascii)

    def _show(self, snapshot: TopSnapshot) -> Screen:
        """Draw the screen. curses only sends changed characters."""
        window, screen = self._window, self._draw(snapshot)
        width = window.getmaxyx()[1]
        window.erase()
        cursor = 0
        for row, line in enumerate(screen.lines):
            attribute = self._attributes.get(line.part, curses.A_NORMAL)
            if line.is_selected:
                cursor, attribute = row, attribute | curses.A_REVERSE
            # curses raises an error after writing the last cell of the screen.
            with contextlib.suppress(curses.error):
                window.addnstr(row, 0, line.text, width, attribute)
        with contextlib.suppress(curses.error):
            window.move(cursor, 0)
        window.refresh()
        return screen


def _is_more_typed() -> bool:
    """Return whether keys are pending: after a paste only the last key is drawn."""
    return bool(select.select([0], [], [], 0)[0])


def _is_gone() -> bool:
    """Return whether the terminal was closed: SIGHUP is not always sent."""
    asked = select.poll()
    asked.register(0, select.POLLIN)
    return any(event & (select.POLLHUP | select.POLLERR) for _, event in asked.poll(0))


def _attributes() -> dict[str, int]:
    found = {
        "head": curses.A_BOLD,
        "title": curses.A_BOLD | curses.A_UNDERLINE,
        "dim": curses.A_DIM,
    }
    for number, part in enumerate(_COLOURS, 1):
        with contextlib.suppress(curses.error):
            found[part] = curses.color_pair(number)
    found["bad"] = found.get("bad", 0) | curses.A_BOLD
    return found


@contextlib.contextmanager
def _quiet_errors() -> Generator[None]:
    """Discard standard error: the log and GPU libraries must not write on the screen."""
    if sys.stderr is None:  # closed at the start
        yield
        return
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextlib.contextmanager
def _signals() -> Generator[None]:
    """Restore the terminal also if a signal ends the program."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in _LEAVING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
