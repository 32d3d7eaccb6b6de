"""Unlisted GPU processes: NVML lists them, /proc does not (they ended, or are hidden)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.agents.sonar.process import UNKNOWN_USER
from ccagent.errors import NotHereError, VanishedError
from ccagent.records.envelopes import SampleJob, SampleProcess

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.machine.node import Node
    from ccagent.records.envelopes import SampleProcessGpu

COMMAND = "_unknown_"


def make_unlisted_jobs(
    node: Node,
    pids: Iterable[int],
    on_cards: dict[int, list[SampleProcessGpu]],
    epoch: int,
) -> list[SampleJob]:
    """Return a job for each process, so that its use of a card is shown.

    Processes that /proc shows were excluded by the configuration, and stay excluded.
    """
    jobs: list[SampleJob] = []
    for pid in sorted(pids):
        try:
            node.owner(f"proc/{pid}")
        except (NotHereError, VanishedError):
            record = SampleProcess(cmd=COMMAND, pid=pid, gpus=on_cards[pid])
            jobs.append(SampleJob(job=pid, user=UNKNOWN_USER, epoch=epoch, processes=[record]))
    return jobs
