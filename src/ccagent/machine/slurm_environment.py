"""What Slurm's programs are run with, and what it means when they don't run."""

from __future__ import annotations

import os

from ccagent.errors import CcagentError, NotHereError

ENVIRONMENT = {"SLURM_TIME_FORMAT": "%s"} | {
    name: value for name in ("SLURM_CONF",) if (value := os.environ.get(name))
}
"""Times as seconds since 1970, so that no zone and no DST plays in."""


def explain_failure(error: CcagentError) -> str:
    """Say in a sentence what is missing."""
    if isinstance(error, NotHereError):
        return f"{error}: Slurm is not installed on this node, or elsewhere: set its path"
    return str(error)
