"""Check whether the kernel reports the clock as synchronised. No time server is queried.

Source: adjtimex(2); struct __kernel_timex in include/uapi/linux/timex.h, for 64 bits.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from ccagent.doctor.finding import Finding
from ccagent.errors import NotPermittedError, UnparsableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.doctor.agent_checks import Site

_TIMEX = struct.Struct("=I4xqqqqi4x")
"""Fields modes, offset, freq, maxerror, esterror, status."""
_SIZE = 208
_UNSYNCHRONISED, _NANOSECONDS = 0x40, 0x2000
_MOST_ERROR = 1.0
_MOST_APART = 2.0
_LOSS = "all: times of records; a store that once got a time in the future refuses right ones"


class ClockState(NamedTuple):
    """State of the kernel's clock. offset, error: seconds; error: the maximum error."""

    is_synchronised: bool
    offset: float
    error: float


def parse_timex(content: bytes) -> ClockState:
    """Parse the struct timex of adjtimex(2). Raise UnparsableError if it is too short."""
    if len(content) < _TIMEX.size:
        raise UnparsableError(f"{len(content)} bytes are not a struct timex")
    _, offset, _, error, _, status = _TIMEX.unpack_from(content)
    unit = 1e-9 if status & _NANOSECONDS else 1e-6
    return ClockState(not status & _UNSYNCHRONISED, offset * unit, error * 1e-6)


def read_timex() -> bytes:
    """Return the kernel's struct timex. Raise NotPermittedError if the call is refused."""
    import ctypes
    import os

    state = ctypes.create_string_buffer(_SIZE)
    if ctypes.CDLL(None, use_errno=True).adjtimex(state) < 0:
        raise NotPermittedError(f"adjtimex: {os.strerror(ctypes.get_errno())}")
    return state.raw


def check_clock(site: Site) -> Iterator[Finding]:
    """Yield the state of this machine's clock."""
    if site.node.is_live:
        yield assess_clock(parse_timex(read_timex()))


def assess_clock(state: ClockState) -> Finding:
    """Return whether the clock is synchronised, and its maximum error."""
    if not state.is_synchronised:
        fix = (
            "run chronyd (with rtcsync), ntpd or systemd-timesyncd; a virtual machine "
            "may use its host's clock"
        )
        found = "not synchronised, as far as the kernel knows"
        return Finding("clock", "clock", "problem", found, fix, [_LOSS])
    found = (
        f"synchronised, {abs(state.offset) * 1000:.3f} ms to go, at most {state.error:.3f} s off"
    )
    if abs(state.offset) > _MOST_ERROR or state.error > _MOST_ERROR:
        fix = "check whether its time servers answer (chronyc tracking, timedatectl)"
        return Finding("clock", "clock", "problem", found, fix, [_LOSS])
    return Finding("clock", "clock", "good", found)


def compare_clocks(sink: str, offset: float, uncertainty: float) -> Finding:
    """Return whether this clock agrees with a sink's clock that is `offset` seconds behind."""
    subject = f"clock, against sink {sink}"
    if abs(offset) <= _MOST_APART + uncertainty:
        return Finding(
            "clock", subject, "good", f"the same, within {_MOST_APART + uncertainty:.1f} s"
        )
    way = "ahead of" if offset > 0 else "behind"
    found = f"this clock is {abs(offset):.0f} s {way} the other"
    return Finding(
        "clock", subject, "problem", found, "synchronise both with the same time servers", [_LOSS]
    )
