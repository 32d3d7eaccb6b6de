"""Running Slurm's programs: their environment, and the text of their errors."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ccagent.errors import CcagentError, NotHereError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.machine.node import Node

ENVIRONMENT = (
    {"SLURM_TIME_FORMAT": "%s"}
    | {f"{program}_LOCAL": "1" for program in ("SACCT", "SCONTROL", "SINFO", "SQUEUE")}
    | {name: value for name in ("SLURM_CONF",) if (value := os.environ.get(name))}
)
"""Times are seconds since 1970, independent of time zones.

With FederationParameters=fed_display in slurm.conf, the programs show the jobs and nodes of all
clusters of a federation, unless they are told to show only their own.
"""


def run_slurm(node: Node, command: Sequence[str], *, time_limit: float, output_limit: int) -> bytes:
    """Run one of Slurm's programs and return its output. Raise as `Node.run` does."""
    return b"".join(
        node.stream(
            command, time_limit=time_limit, output_limit=output_limit, environment=ENVIRONMENT
        )
    )


def explain_failure(error: CcagentError) -> str:
    """Return the error of a Slurm program as a sentence with a fix."""
    if isinstance(error, NotHereError):
        return f"{error}: Slurm is not installed on this node, or elsewhere: set its path"
    return str(error)
