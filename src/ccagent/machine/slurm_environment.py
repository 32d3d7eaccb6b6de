"""Environment of Slurm's programs, and their absence as a sentence."""

from __future__ import annotations

import os

from ccagent.errors import CcagentError, NotHereError

ENVIRONMENT = {"SLURM_TIME_FORMAT": "%s"} | {
    name: value for name in ("SLURM_CONF",) if (value := os.environ.get(name))
}
"""Times are seconds since 1970, independent of time zones."""


def explain_failure(error: CcagentError) -> str:
    """Return an error of a program of Slurm as a sentence with its remedy."""
    if isinstance(error, NotHereError):
        return f"{error}: Slurm is not installed on this node, or elsewhere: set its path"
    return str(error)
