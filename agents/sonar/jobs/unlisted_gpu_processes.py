"""Unlisted GPU processes: in NVML's list but not in /proc, because they ended or are hidden."""

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
    """Return one job for each unlisted GPU process, to show its use of a card.

    A process in /proc that is not in the sample was excluded by the configuration; omit it.
    """
    jobs: list[SampleJob] = []
    for pid in sorted(pids):
        try:
            node.owner(f"proc/{pid}")
        except (NotHereError, VanishedError):
            record = SampleProcess(cmd=COMMAND, pid=pid, gpus=on_cards[pid])
            jobs.append(SampleJob(job=pid, user=UNKNOWN_USER, epoch=epoch, processes=[record]))
    return jobs
