"""Whether somebody keeps the clock, as the kernel knows it. No time server is asked.

Source: adjtimex(2); struct __kernel_timex in include/uapi/linux/timex.h, for 64 bits.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from ccagent.doctor.finding import Finding
from ccagent.errors import NotPermittedError, UnparsableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.doctor.demands import Site

AREA = "clock"

_TIMEX = struct.Struct("=I4xqqqqi4x")
"""modes, offset, freq, maxerror, esterror, status."""
_SIZE = 208
_UNSYNCHRONISED, _NANOSECONDS = 0x40, 0x2000
_MOST_ERROR = 1.0
_MOST_APART = 2.0
_LOSS = "all: times of records; a store that once got a time in the future refuses right ones"


class ClockState(NamedTuple):
    """How the kernel keeps time. offset, error: seconds; `error` is the most it may be wrong."""

    is_synchronised: bool
    offset: float
    error: float


def parse_timex(content: bytes) -> ClockState:
    """Parse what adjtimex(2) has filled in. Raises UnparsableError."""
    if len(content) < _TIMEX.size:
        raise UnparsableError(f"{len(content)} bytes are no struct timex")
    _, offset, _, error, _, status = _TIMEX.unpack_from(content)
    unit = 1e-9 if status & _NANOSECONDS else 1e-6
    return ClockState(not status & _UNSYNCHRONISED, offset * unit, error * 1e-6)


def read_timex() -> bytes:
    """Ask the kernel, without changing anything. Raises NotPermittedError."""
    import ctypes
    import os

    state = ctypes.create_string_buffer(_SIZE)
    if ctypes.CDLL(None, use_errno=True).adjtimex(state) < 0:
        raise NotPermittedError(f"adjtimex: {os.strerror(ctypes.get_errno())}")
    return state.raw


def check_clock(site: Site) -> Iterator[Finding]:
    """Tell the state of this machine's clock."""
    if site.node.is_live:
        yield judge_clock(parse_timex(read_timex()))


def judge_clock(state: ClockState) -> Finding:
    """Judge whether the clock is kept, and how well."""
    if not state.is_synchronised:
        return Finding(
            area=AREA,
            subject="clock",
            state="problem",
            found="not synchronised, as far as the kernel was told",
            impact=[_LOSS],
            fix="run chronyd (with rtcsync), ntpd or systemd-timesyncd; a virtual machine "
            "may have its host keep it",
        )
    found = (
        f"synchronised, {abs(state.offset) * 1000:.3f} ms to go, at most {state.error:.3f} s off"
    )
    if abs(state.offset) > _MOST_ERROR or state.error > _MOST_ERROR:
        return Finding(
            area=AREA,
            subject="clock",
            state="problem",
            found=found,
            impact=[_LOSS],
            fix="see whether its time servers answer (chronyc tracking, timedatectl)",
        )
    return Finding(area=AREA, subject="clock", state="good", found=found)


def judge_other_clock(sink: str, ahead: float, doubt: float) -> Finding:
    """Judge how far this clock is ahead of that of a sink, in seconds, give or take `doubt`."""
    subject = f"clock, against sink {sink}"
    if abs(ahead) <= _MOST_APART + doubt:
        return Finding(
            area=AREA, subject=subject, state="good", found=f"the same, within {1 + doubt:.1f} s"
        )
    way = "ahead of" if ahead > 0 else "behind"
    return Finding(
        area=AREA,
        subject=subject,
        state="problem",
        found=f"this one is {abs(ahead):.0f} s {way} the other",
        impact=[_LOSS],
        fix="have both follow the same time servers",
    )
