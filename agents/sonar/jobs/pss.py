"""Proportional set size of jobs: memory of their processes, with shared pages divided.

The kernel walks all pages of a process to compute it. It is read only on demand.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccagent.errors import (
    CcagentError,
    NotHereError,
    NotPermittedError,
    UnparsableError,
    VanishedError,
)
from ccagent.log import logger
from ccagent.records.envelopes import LARGEST_UINT

if TYPE_CHECKING:
    from ccagent.agents.sonar.process import Process
    from ccagent.machine.node import Node

_PSS = re.compile(rb"^Pss: +([0-9]{1,20}) kB$", re.MULTILINE)


def parse_pss(content: bytes) -> int:
    """Return the Pss of /proc/PID/smaps_rollup in KB. Raise UnparsableError if it is invalid."""
    found = _PSS.search(content)
    if found is None:
        raise UnparsableError(f"no Pss: {content[:80]!r}")
    size = int(found[1])
    if size > LARGEST_UINT:
        raise UnparsableError(f"Pss is out of range: {size}")
    return size


class JobPss:
    """Sums over the processes of each Slurm job.

    A job with a process that can't be read has no sum.
    """

    def __init__(self) -> None:
        self._has_warned = False

    def read(self, node: Node, processes: list[Process], errors: list[str]) -> dict[int, int]:
        """Return KB by job. Append a message to `errors` for each file that can't be parsed."""
        sums: dict[int, int] = {}
        denied: set[int] = set()
        for process in processes:
            job = process.job
            if not job or job in denied or process.is_ended:
                continue
            path = f"proc/{process.pid}/smaps_rollup"
            try:
                content = node.read(path)
                if content:  # the process has exited
                    sums[job] = sums.get(job, 0) + parse_pss(content)
            except NotPermittedError as error:
                denied.add(job)
                self._warn(node, error)
            except (NotHereError, VanishedError):
                continue  # the process has ended, or the kernel is older than 4.14
            except CcagentError as error:
                denied.add(job)
                errors.append(f"/{path}: {error}")
        return {job: size for job, size in sums.items() if job not in denied}

    def _warn(self, node: Node, error: CcagentError) -> None:
        if not self._has_warned:
            from ccagent.machine.parsed import read_lack

            self._has_warned = True
            logger.warning(
                "agent sample: job-pss: %s; jobs of other users are omitted: %s",
                error,
                read_lack(node, "CAP_SYS_PTRACE"),
            )
