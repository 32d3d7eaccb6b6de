"""The live screen: curses, keys, readings at an interval."""

from __future__ import annotations

import contextlib
import curses
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

from ccagent.errors import NotHereError
from ccagent.views.terminal import is_unicode
from ccagent.views.top.screen import draw

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import FrameType

    from ccagent.views.top.reader import NodeReader
    from ccagent.views.top.screen import Screen
    from ccagent.views.top.snapshot import TopSnapshot
    from ccagent.views.top.state import ViewState

_KEYS = {
    curses.KEY_UP: "UP", curses.KEY_DOWN: "DOWN", curses.KEY_LEFT: "LEFT",
    curses.KEY_RIGHT: "RIGHT", curses.KEY_HOME: "HOME", curses.KEY_END: "END",
    curses.KEY_PPAGE: "PGUP", curses.KEY_NPAGE: "PGDN", curses.KEY_ENTER: "ENTER",
    curses.KEY_BACKSPACE: "BACK", **{curses.KEY_F0 + n: f"F{n}" for n in range(1, 13)},
}  # fmt: skip
_CHARACTERS = {"\n": "ENTER", "\r": "ENTER", "\x1b": "ESC", "\x7f": "BACK", "\x08": "BACK"}
_FIRST_PAUSE = 0.3
"""Seconds before the first screen: use needs two readings."""

_COLOURS = {"bad": curses.COLOR_RED, "hint": curses.COLOR_YELLOW, "good": curses.COLOR_BLUE}


def run_screen(reader: NodeReader, state: ViewState, *, has_colours: bool) -> None:
    """Show the node until the user leaves. Raises NotHereError without a terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise NotHereError("top: standard input or output is no terminal; try --once")
    with _quiet_errors(), _signals():
        try:
            window = curses.initscr()
        except curses.error as error:
            term = os.environ.get("TERM", "")
            raise NotHereError(f"top: TERM={term!r} can't be used: {error}; try --once") from error
        try:
            _prepare(window, has_colours=has_colours)
            _Live(window, reader, state).run()
        finally:
            curses.endwin()


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
    """Reads and draws by turns; a key draws without reading."""

    def __init__(self, window: curses.window, reader: NodeReader, state: ViewState) -> None:
        self._window = window
        self._reader = reader
        self._state = state
        self._is_ascii = not is_unicode(sys.stdout.encoding)
        self._attributes = _attributes()

    def run(self) -> None:
        self._reader.begin()
        time.sleep(_FIRST_PAUSE)
        snapshot = self._reader.read()
        self._state = self._state.begin(has_jobs=any(job.job for job in snapshot.jobs))
        screen = self._show(snapshot)
        due = time.monotonic() + self._state.interval
        while not self._state.has_ended:
            key = self._wait(due - time.monotonic())
            interval = self._state.interval
            if key:
                pressed = key
                self._state = self._state.press(pressed, screen.rows, screen.page, screen.job)
                due += self._state.interval - interval
            elif not self._state.is_paused:
                snapshot = self._reader.read()
            if not key:
                # Missed readings are not made up for.
                due = max(due + interval, time.monotonic() + interval / 2)
            if not self._state.has_ended:
                screen = self._show(snapshot)

    def _wait(self, seconds: float) -> str:
        """Return the next key; empty if none was pressed for so long, or the size has changed."""
        self._window.timeout(max(0, int(seconds * 1000)))
        try:
            key = self._window.get_wch()
        except curses.error:
            return ""
        if isinstance(key, str):
            return _CHARACTERS.get(key, key)
        return "RESIZE" if key == curses.KEY_RESIZE else _KEYS.get(key, "OTHER")

    def _show(self, snapshot: TopSnapshot) -> Screen:
        """Draw; curses sends only the characters that have changed."""
        window = self._window
        height, width = window.getmaxyx()
        screen = draw(snapshot, self._state, width, height, is_ascii=self._is_ascii)
        window.erase()
        cursor = 0
        for row, line in enumerate(screen.lines):
            attribute = self._attributes.get(line.part, curses.A_NORMAL)
            if line.is_selected:
                cursor, attribute = row, attribute | curses.A_REVERSE
            # The last cell of the screen can't be written: curses raises after it did.
            with contextlib.suppress(curses.error):
                window.addnstr(row, 0, line.text, width, attribute)
        with contextlib.suppress(curses.error):
            window.move(cursor, 0)
        window.refresh()
        return screen


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
    """Keep the log, and libraries of GPUs, from writing on the screen."""
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
    """Leave the screen as it was also when a signal ends the program."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
