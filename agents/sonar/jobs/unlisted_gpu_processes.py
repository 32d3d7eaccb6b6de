"""Processes on cards that the process table doesn't show: gone, or hidden from this user."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.agents.sonar.jobs.records import UNKNOWN_USER
from ccagent.errors import NotHereError, VanishedError
from ccagent.records.envelopes import SampleJob, SampleProcess

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.machine.node import Node
    from ccagent.records.envelopes import SampleProcessGpu

COMMAND = "_unknown_"


def jobs_of_strangers(
    node: Node,
    pids: Iterable[int],
    on_cards: dict[int, list[SampleProcessGpu]],
    epoch: int,
) -> list[SampleJob]:
    """Give each its own job, so that what it holds of a card is seen.

    Processes that /proc does show were left out by configuration, and stay out.
    """
    jobs: list[SampleJob] = []
    for pid in sorted(pids):
        try:
            node.owner(f"proc/{pid}")
        except (NotHereError, VanishedError):
            record = SampleProcess(cmd=COMMAND, pid=pid, gpus=on_cards[pid])
            jobs.append(SampleJob(job=pid, user=UNKNOWN_USER, epoch=epoch, processes=[record]))
    return jobs
