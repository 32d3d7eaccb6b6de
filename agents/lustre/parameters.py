"""The parameters that `lctl get_param` prints, whatever they hold.

Source: lctl(8), lctl-get_param(8). A value of one line stands behind its name, one of several
lines follows it (an empty one may do either):

    obdfilter.scratch-OST0000.num_exports=12
    obdfilter.scratch-OST0000.stats=
    snapshot_time             1709306082.170995043 secs.nsecs
    read_bytes                71482249 samples [bytes] 4096 1048576 58370831220736
    ost.OSS.ost_seq.stats=snapshot_time             1709306082.171480402 secs.nsecs
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_LONGEST_NAME = 512
_NAME = re.compile(rb"[A-Za-z][\w@:-]*+(?:\.[^=\s]++)?")
_LEFT_OUT = b".job_stats"


class Parameter(NamedTuple):
    """One parameter: its name as lctl prints it, and its value without the outer line breaks."""

    name: str
    value: bytes


def parse_parameters(content: bytes) -> Iterator[Parameter]:
    """Yield the parameters of a dump in its order, repeated ones included.

    Bodies of job_stats are left out; they are skipped without looking at their lines. What stands
    before the first parameter belongs to none. Never raises, in linear time.
    """
    name = ""
    start = 0
    for line, equals in _names(content):
        if name:
            yield Parameter(name, content[start:line].strip(b"\n"))
        found = content[line:equals]
        name = "" if found.endswith(_LEFT_OUT) else found.decode("ascii", "backslashreplace")
        start = equals + 1
    if name:
        yield Parameter(name, content[start:].strip(b"\n"))


def _names(content: bytes) -> Iterator[tuple[int, int]]:
    """Yield where each line `name=...` begins, and where its `=` is.

    Lines without a `=` are never looked at; of the others only the first one counts, so that no
    byte is gone over more than a few times.
    """
    position = 0
    while (equals := content.find(b"=", position)) >= 0:
        line = content.rfind(b"\n", position, equals) + 1 or position
        if equals - line <= _LONGEST_NAME and _NAME.fullmatch(content, line, equals):
            yield line, equals
        position = content.find(b"\n", equals) + 1
        if not position:
            return


def show_text(text: str | bytes) -> str:
    """Return what an error may show of text from outside: its beginning, escaped if need be."""
    if isinstance(text, bytes):
        text = text[:80].decode("utf-8", "backslashreplace")
    return text[:80] if text.isprintable() else repr(text[:80])
