"""Whether as many files may be open as the reader of processes keeps."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccagent.doctor.finding import Finding
from ccagent.errors import UnparsableError
from ccagent.machine.parsed import read_parsed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.doctor.demands import Site

LIMITS = "proc/self/limits"

_LINE = re.compile(rb"^Max open files\s+(\d{1,20}|unlimited)\s+(\d{1,20}|unlimited)", re.MULTILINE)
_KEPT = 3
"""Files of a process: stat, statm, io."""
_OTHERS = 256
"""Which are left for all else."""


def parse_limit(content: bytes) -> int | None:
    """Parse the hard limit of open files in /proc/self/limits; None for none.

    Raises UnparsableError.
    """
    match = _LINE.search(content)
    if match is None:
        raise UnparsableError("no limit of open files")
    return None if match[2] == b"unlimited" else int(match[2])


def check_limits(site: Site) -> Iterator[Finding]:
    """Hold the limit against the processes of now."""
    processes = sum(name.isdecimal() for name in site.node.list("proc"))
    yield judge_limit(read_parsed(site.node, LIMITS, parse_limit), processes)


def judge_limit(limit: int | None, processes: int) -> Finding:
    """Judge the hard limit, to which the soft one is raised."""
    needed = _KEPT * processes + _OTHERS
    if limit is not None and limit < needed:
        return Finding(
            area="processes",
            subject="open files",
            state="problem",
            found=f"at most {limit} (RLIMIT_NOFILE), where {processes} processes want {needed}",
            fix=f"raise the hard limit: LimitNOFILE={max(65536, 4 * needed)} in the service",
        )
    room = "any number of" if limit is None else str((limit - _OTHERS) // _KEPT)
    return Finding(
        area="processes",
        subject="open files",
        state="good",
        found=f"at most {limit or 'unlimited'}: enough for {room} processes; {processes} there are",
    )
