"""energy: ended jobs wait for Slurm's figure, a bounded number of them for a bounded time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.energy.accounts import JobAccount
from ccagent.agents.energy.ended_jobs import MOST_ENDED, EndedJobs, parse_consumed
from ccagent.errors import ProgramError
from tests.support.energy_tree import EnergyNode, make_settings


class SlurmNode(EnergyNode):
    """A node whose sacct prints what the test says."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.output: bytes | None = b""
        self.asked: list[str] = []

    def stream(
        self,
        command: Sequence[str],
        *,
        time_limit: float,
        output_limit: int,
        environment: Mapping[str, str] | None = None,
        standard_input: bytes = b"",
    ) -> Iterator[bytes]:
        self.asked.append(command[-1])
        if self.output is None:
            raise ProgramError("sacct: no connection")
        yield self.output


def test_rows_of_sacct() -> None:
    unknown = b"14|1|0\n15|1|\n16|1|4294967294\nx|1|5\n17|1|18446744073709551614\n"
    rows = b"12|1|3400\n13|2|900\n" + unknown
    assert parse_consumed(rows) == {12: 3400}


@given(st.binary() | st.from_regex(rb"([0-9]{0,25}\|){0,4}[0-9]{0,25}\n?"))
def test_any_rows_are_understood_or_skipped(content: bytes) -> None:
    assert all(joules > 0 for joules in parse_consumed(content).values())


def test_without_sacct_they_are_complete_at_once(tmp_path: Path) -> None:
    ended, node = EndedJobs(make_settings()), SlurmNode(tmp_path)
    ended.add(JobAccount(job=1), node.clock.uptime())
    assert [each.account.job for each in ended.take(node, waits=True)] == [1]
    assert ended.take(node, waits=True) == []
    assert node.asked == []


def test_they_wait_for_slurms_figure(tmp_path: Path) -> None:
    ended, node = EndedJobs(make_settings(sacct="sacct")), SlurmNode(tmp_path)
    node.output = b"1|1|3400\n"
    ended.add(JobAccount(job=1), node.clock.uptime())
    assert ended.take(node, waits=True) == []
    assert node.asked == []
    node.still.sleep(60)
    assert ended.take(node, waits=True) == []
    assert ended._call.is_over()
    (found,) = ended.take(node, waits=True)
    assert found.slurm_joules == 3400
    assert node.asked == ["--jobs=1"]
    ended.close()


def test_they_do_not_wait_for_ever(tmp_path: Path) -> None:
    ended, node = EndedJobs(make_settings(sacct="sacct")), SlurmNode(tmp_path)
    node.output = None
    ended.add(JobAccount(job=1), node.clock.uptime())
    node.still.sleep(300)
    (found,) = ended.take(node, waits=True)
    assert found.slurm_joules is None
    ended.close()


def test_too_many_cost_the_oldest(tmp_path: Path) -> None:
    ended, node = EndedJobs(make_settings()), SlurmNode(tmp_path)
    for job in range(MOST_ENDED + 2):
        ended.add(JobAccount(job=job), 0.0)
    assert ended.lost == 2
    assert len(ended.take(node, waits=True)) == MOST_ENDED
