"""Parser for the output of `lctl get_param`, with any parameters.

Source: lctl(8), lctl-get_param(8). A one-line value is on the line of its name. A value of several
lines follows it. An empty value may have either form:

    obdfilter.scratch-OST0000.num_exports=12
    obdfilter.scratch-OST0000.stats=
    snapshot_time 1709306082.170995043 secs.nsecs
    read_bytes 71482249 samples [bytes] 4096 1048576 58370831220736
    ost.OSS.ost_seq.stats=snapshot_time 1709306082.171480402 secs.nsecs
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
    """One parameter: its name as lctl prints it, and its value without outer line breaks."""

    name: str
    value: bytes


def parse_parameters(content: bytes) -> Iterator[Parameter]:
    """Yield the parameters of a dump in order, including repeated ones.

    Values of job_stats are skipped without parsing their lines. Text before the first parameter is
    ignored. Never raises; takes linear time.
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
    """Yield the position of each line `name=...` and of its `=`.

    Lines without a `=` are skipped, and only the first `=` of a line counts. So no byte is searched
    more than a few times.
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
    """Return external text for an error message: its beginning, escaped where needed."""
    if isinstance(text, bytes):
        text = text[:80].decode("utf-8", "backslashreplace")
    return text[:80] if text.isprintable() else repr(text[:80])
