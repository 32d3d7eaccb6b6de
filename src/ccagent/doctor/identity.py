"""Checks of the names of host and cluster, the user with its capabilities, and the clock.

No time server is queried: the kernel says whether the clock is synchronised. Source: adjtimex(2);
struct __kernel_timex in include/uapi/linux/timex.h, for 64 bits.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from ccagent.doctor.finding import Finding, Site
from ccagent.errors import CcagentError, NotPermittedError, UnparsableError
from ccagent.machine.hostlist import expand
from ccagent.machine.node import read_host_name
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.process_files import CAPABILITIES, STATUS, Identity, parse_identity
from ccagent.machine.slurm_environment import run_slurm

if TYPE_CHECKING:
    from collections.abc import Iterator


_AREA = "identity"
_SLURM_WITHIN = 5.0
_OUTPUT_LIMIT = 16 * 1024 * 1024
_COMMON_NAMES = frozenset({"localhost", "localhost.localdomain", "(none)"})

_KEEP_DOMAIN = "set hostname-only = false in the configuration"


def check_identity(site: Site) -> Iterator[Finding]:
    """Yield findings on the names and the user."""
    node = site.node
    yield assess_host(node.hostname)
    yield assess_cluster(node.cluster, is_configured=bool(site.configuration.settings.cluster))
    identity = read_parsed(node, STATUS, parse_identity)
    yield describe_user(identity, node.user(identity.uid))


def check_slurm_name(site: Site) -> Iterator[Finding]:
    """Yield a finding if Slurm has this node under another name than records.

    Other checks report a Slurm that is missing or does not answer.
    """
    agent = site.configuration.agents.get("cluster")
    program = str(getattr(agent, "sinfo", "sinfo"))
    command = [program, "--noheader", "--all", "--format=%N"]
    try:
        content = run_slurm(
            site.node, command, time_limit=_SLURM_WITHIN, output_limit=_OUTPUT_LIMIT
        )
        names = {
            name
            for line in content.decode("utf-8", "replace").splitlines()
            for name in expand(line)
        }
    except CcagentError:
        return
    finding = assess_slurm_name(site.node.hostname, read_host_name(), names)
    if finding is not None:
        yield finding


def assess_slurm_name(name: str, own: str, names: set[str]) -> Finding | None:
    """Return whether Slurm has a node under its name in records; None for a node without Slurm.

    name: the name in records. own: the host name of this machine. names: Slurm's nodes.
    """
    short = name.partition(".")[0]
    same = sorted(other for other in names if other.partition(".")[0] == short)
    if not same:
        return None
    if len(same) > 1 and "." not in name:
        found, fix = f"{name} is the short name of {same[0]} and {same[1]}", _KEEP_DOMAIN
    elif name in names:
        return Finding(_AREA, "name in Slurm", "good", name)
    elif short in names:
        found = f"Slurm has {short}, records have {name}"
        fix = "remove hostname-only = false and hostname from the configuration"
    else:
        found = f"Slurm has {own if own in names else same[0]}, records have {name}"
        fix = _KEEP_DOMAIN
    impact = ["all: jobs and samples of this node have different names"]
    return Finding(_AREA, "name in Slurm", "problem", found, fix, impact)


def assess_host(name: str) -> Finding:
    """Return whether the host name of records is unique."""
    if name not in _COMMON_NAMES:
        return Finding(_AREA, "host name", "good", name)
    found = f"{name}, the name of many hosts"
    fix = "set the host's name (hostnamectl hostname NAME), or hostname in the configuration"
    impact = ["all: records of different nodes can't be distinguished"]
    return Finding(_AREA, "host name", "problem", found, fix, impact)


def assess_cluster(name: str, *, is_configured: bool) -> Finding:
    """Return whether the cluster name of records is set or known."""
    if is_configured:
        return Finding(_AREA, "cluster name", "good", f"{name}, as configured")
    if name != "local":
        return Finding(_AREA, "cluster name", "good", f"{name}, the domain of the host")
    found = "local, for the host's name has no domain and none is configured"
    fix = 'set cluster = "NAME" in the configuration'
    impact = ["all: records of different clusters can't be distinguished"]
    return Finding(_AREA, "cluster name", "problem", found, fix, impact)


def describe_user(identity: Identity, name: str) -> Finding:
    """Return the user with its capabilities. Other checks report their consequences."""
    held = ", ".join(sorted(identity.capabilities)) or "none"
    if identity.is_all_powerful:
        held = "all"
    fix = ""
    if identity.uid == 0 and not identity.is_all_powerful:
        held += f"; missing: {', '.join(sorted(CAPABILITIES.keys() - identity.capabilities))}"
    if identity.uid == 0:
        fix = (
            "if the service has a separate user, also run the doctor as this user: "
            "runuser -u USER -- ccagent doctor"
        )
    return Finding(_AREA, "user", "good", f"{name}, capabilities that matter: {held}", fix)


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
        found = f"the same, within {_MOST_APART + uncertainty:.1f} s"
        return Finding("clock", subject, "good", found)
    way = "ahead of" if offset > 0 else "behind"
    found = f"this clock is {abs(offset):.0f} s {way} the other"
    fix = "synchronise both with the same time servers"
    return Finding("clock", subject, "problem", found, fix, [_LOSS])
