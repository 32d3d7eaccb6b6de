"""Check of the kernel programs that count the I/O of jobs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ccagent.agents.jobio.usage import read_counters
from ccagent.errors import CcagentError, NotHereError, NotPermittedError
from ccagent.machine.bpf.io_hooks import missing_hooks
from ccagent.machine.checks import Check, CheckResult

if TYPE_CHECKING:
    from ccagent.machine.node import Node

_LOAD = "as root: ccagent kernel load --io"


def remedy(error: CcagentError) -> str:
    """Return the fix for unreadable programs."""
    if isinstance(error, NotPermittedError):
        return f"add the user to the group, or {_LOAD} --group NAME"
    return _LOAD


def require_io_programs(node: Node, directory: str) -> Check:
    """Return the check of the pinned programs, which the agent requires."""
    return Check(
        "kernel",
        "I/O by job",
        partial(find_io_programs, node, directory),
        "I/O and network traffic of jobs",
        is_vital=True,
    )


def find_io_programs(node: Node, directory: str) -> CheckResult:
    """Check whether the programs are readable. Name the values that they can't count."""
    try:
        io, _ = read_counters(node, directory)
    except NotHereError:
        return CheckResult("missing", f"{directory}: no programs for I/O are loaded", _LOAD)
    except NotPermittedError as error:
        return CheckResult("problem", f"{directory}: this user may not read them", remedy(error))
    missing = ", ".join(hook.counts for hook in missing_hooks(io.header.features))
    found = f"{directory}: {len(io.entries)} entries"
    return CheckResult("good", f"{found}; this kernel can't count: {missing}" if missing else found)
