"""Environment of Slurm's programs, and the text of their errors."""

from __future__ import annotations

import os

from ccagent.errors import CcagentError, NotHereError

ENVIRONMENT = {"SLURM_TIME_FORMAT": "%s"} | {
    name: value for name in ("SLURM_CONF",) if (value := os.environ.get(name))
}
"""Times are seconds since 1970, independent of time zones."""


def explain_failure(error: CcagentError) -> str:
    """Return the error of a Slurm program as a sentence with a fix."""
    if isinstance(error, NotHereError):
        return f"{error}: Slurm is not installed on this node, or elsewhere: set its path"
    return str(error)
