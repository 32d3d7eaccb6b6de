"""Whether the counters of the processor can be used: PMU, permission, and a try."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccagent.agents.metrics.perf.call import CYCLES, PerfCall, explain_error
from ccagent.doctor.finding import Finding
from ccagent.errors import CcagentError, NotHereError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccagent.doctor.demands import Site
    from ccagent.machine.node import Node

SUBJECT = "hardware counters"

_DEVICES = "sys/bus/event_source/devices"
_PARANOID = "proc/sys/kernel/perf_event_paranoid"
_CORES = re.compile(r"cpu|cpu_core|cpu_atom|armv\d+.*|cpum_cf")


def check_counters(site: Site) -> Iterator[Finding]:
    """Open a counter of cycles on the first cpu and close it again."""
    node = site.node
    paranoid = _paranoid(node)
    try:
        pmus = sorted(filter(_CORES.fullmatch, node.list(_DEVICES)))
    except CcagentError:
        pmus = []
    yield judge_counters(pmus, paranoid, _tried(node, paranoid))


def judge_counters(pmus: Sequence[str], paranoid: str, refusal: CcagentError | None) -> Finding:
    """Judge by the PMUs of cores, kernel.perf_event_paranoid, and what opening one has given."""
    level = f"perf_event_paranoid is {paranoid or 'unknown'}"
    if refusal is None and pmus:
        return Finding(
            area="power",
            subject=SUBJECT,
            state="good",
            found=f"PMU {', '.join(pmus)} counts; {level}",
        )
    if not pmus or isinstance(refusal, NotHereError):
        return Finding(
            area="power",
            subject=SUBJECT,
            state="missing",
            found=f"no PMU of cores; {level}",
            fix="in a virtual machine the host may hand its own on (vPMU)",
        )
    return Finding(
        area="power",
        subject=SUBJECT,
        state="problem",
        found=f"PMU {', '.join(pmus)}, but {refusal}",
        fix="sysctl kernel.perf_event_paranoid=0; or 2 at most, and CapabilityBoundingSet= and "
        "AmbientCapabilities=CAP_PERFMON for the service (CAP_SYS_ADMIN before Linux 5.8)",
    )


def _tried(node: Node, paranoid: str) -> CcagentError | None:
    if not node.is_live:
        return None
    call = PerfCall()
    try:
        call.close(call.open(CYCLES, 0))
    except OSError as error:
        return explain_error(error, paranoid)
    except CcagentError as error:
        return error
    return None


def _paranoid(node: Node) -> str:
    try:
        return node.read(_PARANOID).decode("ascii", "replace").strip()
    except CcagentError:
        return ""
