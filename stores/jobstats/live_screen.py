"""The screen of `ccagent jobstats live`: refreshed in place, with keys."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import sys
import termios
import time
import tty
from typing import TYPE_CHECKING

from ccagent.errors import CcagentError
from ccagent.stores.jobstats.live import ORDERS
from ccagent.stores.jobstats.tables import format_live

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from ccagent.stores.jobstats.live import LiveAnswer

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"


def show_live(
    ask: Callable[[dict[str, str]], LiveAnswer], answer: LiveAnswer, seconds: float
) -> None:
    """Show answers until `q` is pressed.

    ask: returns the next answer for changed parameters. A store that does not answer is named in
    the last line; the answer before stays.
    """
    order, reason = ORDERS[0], ""
    with _keys():
        while True:
            _draw(answer, f"q quit, s sort: {order}, every {seconds:g} s", reason)
            deadline = time.monotonic() + seconds
            while (left := deadline - time.monotonic()) > 0:
                if not select.select([sys.stdin], [], [], left)[0]:
                    continue
                # Not through sys.stdin: it would keep further keys in its buffer.
                key = os.read(sys.stdin.fileno(), 1)
                if key in {b"q", b""}:
                    return
                if key == b"s":
                    order = ORDERS[(ORDERS.index(order) + 1) % len(ORDERS)]
                    break
            try:
                answer, reason = ask({"sort": order}), ""
            except CcagentError as error:
                reason = str(error)


def _draw(answer: LiveAnswer, keys: str, reason: str) -> None:
    width, height = shutil.get_terminal_size()
    lines = format_live(answer).splitlines()[: height - 1]
    foot = reason or keys
    text = "".join(f"{line[:width]}{_CLEAR_LINE}\r\n" for line in lines)
    sys.stdout.write(f"{_HOME}{text}{foot[:width]}{_CLEAR_REST}")
    sys.stdout.flush()


@contextlib.contextmanager
def _keys() -> Generator[None]:
    """Read keys without Enter and echo, on the terminal's other screen."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    sys.stdout.write(_ENTER)
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
