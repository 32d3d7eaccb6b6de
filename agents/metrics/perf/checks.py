"""Check of hardware counters: PMUs, permission, and opening a counter."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from ccagent.agents.metrics.perf.call import CYCLES, PerfCall, explain_error, read_paranoid
from ccagent.errors import CcagentError, NotHereError
from ccagent.machine.checks import Check, CheckResult, list_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.machine.node import Node

_DEVICES = "sys/bus/event_source/devices"
_CORES = re.compile(r"cpu|cpu_core|cpu_atom|armv\d+.*|cpum_cf")


def require_counters(node: Node, impact: str = "") -> Check:
    """Return the check of hardware counters."""
    return Check("power", "hardware counters", partial(find_counters, node), impact)


def find_counters(node: Node) -> CheckResult:
    """Open and close a counter of cycles on the first cpu."""
    paranoid = read_paranoid(node)
    pmus = list(filter(_CORES.fullmatch, list_names(node, _DEVICES)))
    return assess_counters(pmus, paranoid, _try_cycles(paranoid) if node.is_live else None)


def assess_counters(
    pmus: Sequence[str], paranoid: str, refusal: CcagentError | None
) -> CheckResult:
    """Return the result for the core PMUs and the error of opening a counter."""
    level = f"perf_event_paranoid is {paranoid or 'unknown'}"
    if not pmus or isinstance(refusal, NotHereError):
        fix = "for a virtual machine, enable a vPMU on the host"
        return CheckResult("missing", f"no PMU of cores; {level}", fix)
    if refusal is not None:
        call, reason, fix = [*str(refusal).split(": ", 2), "", ""][:3]
        return CheckResult("problem", f"PMU {', '.join(pmus)}, but {call}: {reason}; {level}", fix)
    return CheckResult("good", f"PMU {', '.join(pmus)} counts; {level}")


def _try_cycles(paranoid: str) -> CcagentError | None:
    call = PerfCall()
    try:
        call.close(call.open(CYCLES, 0))
    except OSError as error:
        return explain_error(error, paranoid)
    except CcagentError as error:
        return error
    return None
