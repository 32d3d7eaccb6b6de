"""energy: ended jobs wait for Slurm's figure, a bounded number of them for a bounded time."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.energy.accounts import SYSTEM, JobAccount
from ccagent.agents.energy.ended_jobs import MOST_ENDED, EndedJobs, EndedTimes, parse_consumed
from ccagent.errors import ProgramError
from ccagent.machine.bpf.pinned_file import HEADER
from ccagent.machine.bpf.process_records import ENDED_LAYOUT, ENDED_MAGIC, ENDED_RECORD
from tests.support.energy_tree import EnergyNode, make_meter, make_settings

PATH = "run/ccagent-kernel/ended"
SECOND = 10**9
P0_IDLE = {"idle-package": 40.0, "idle-dram": 5.0}


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
    kept = [job.account.job for job in ended.take(node, waits=True)]
    assert kept == [*range(2, MOST_ENDED + 2)]


class Kernel:
    """The pinned file, as the programs would fill it."""

    def __init__(self, node: EnergyNode) -> None:
        self._node = node
        self._sums: dict[int, tuple[int, int, int, int]] = {}
        self.show()

    def end(self, job: int, seconds: float) -> None:
        """Let a process of a job end that has used so much CPU time."""
        now = round(self._node.still.booted * SECOND)
        count, runtime, since, _ = self._sums.get(job, (0, 0, now, 0))
        self._sums[job] = count + 1, runtime + round(seconds * SECOND), since, now
        self.show()

    def show(self) -> None:
        now = round(self._node.still.booted * SECOND)
        size, magic, layout = (
            ENDED_RECORD.size, ENDED_MAGIC, ENDED_LAYOUT,
        )  # fmt: skip
        body = HEADER.pack(magic, layout, size, now, 600 * SECOND)
        for job, (count, runtime, since, last) in self._sums.items():
            values = (count, runtime, 0, 0, 0, 0, 0, 0, since, last)
            body += ENDED_RECORD.pack(0, 0, job, 0, 1001, 0, b"a.out", *values)
        total = sum(each[0] for each in self._sums.values())
        body += bytes(size - 80) + struct.pack("<10Q", total, *[0] * 9)
        body += HEADER.pack(b"ccended\n", layout, 0, now, 0)
        path = self._node.path / PATH
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)


@pytest.fixture
def node(tmp_path: Path) -> EnergyNode:
    found = EnergyNode(tmp_path)
    found.zones()
    return found


def pass_time(node: EnergyNode, kernel: Kernel) -> None:
    for zone in node.energies:
        node.spend(zone, 1000)
    node.still.sleep(10)
    kernel.show()


def test_the_last_cpu_time_of_a_job_is_its_own(node: EnergyNode) -> None:
    kernel = Kernel(node)
    meter = make_meter(node, **P0_IDLE)
    node.job(1, "0-3")
    node.work(1, {0: 400})
    pass_time(node, kernel)
    meter.tick(node)
    node.other_work({0: 300})  # which is the job's, but its group has gone
    kernel.end(1, 1.5)
    kernel.end(1, 5.5)
    node.end(1)
    pass_time(node, kernel)
    tick = meter.tick(node)
    assert tick.errors == []
    assert all(split[SYSTEM] == 0 for split in tick.totals.split.values())
    (ended,) = meter.take_ended(node)
    assert ended.account.of("cpu", "active") == 1_200_000_000
    assert ended.account.coverage == 1.0


def test_a_job_between_two_ticks_is_seen(node: EnergyNode) -> None:
    kernel = Kernel(node)
    meter = make_meter(node, **P0_IDLE)
    pass_time(node, kernel)
    meter.tick(node)
    node.other_work({0: 200})
    kernel.end(5, 2.0)
    pass_time(node, kernel)
    meter.tick(node)
    (ended,) = meter.take_ended(node)
    account = ended.account
    assert account.job == 5
    assert account.seconds == 2_000_000
    assert account.idle == 0
    assert account.least <= 600_000_000 <= account.most  # it may have run on either socket
    kernel.end(5, 0.5)  # summed up late
    pass_time(node, kernel)
    meter.tick(node)
    assert meter.take_ended(node) == []


def test_a_job_from_before_has_no_known_end(node: EnergyNode) -> None:
    kernel = Kernel(node)
    node.job(1, "0-3")
    node.work(1, {0: 5000})
    meter = make_meter(node, **P0_IDLE)
    kernel.end(1, 3.0)
    node.end(1)
    pass_time(node, kernel)
    meter.tick(node)
    (ended,) = meter.take_ended(node)
    assert ended.account.of("cpu", "active") == 0
    assert ended.account.coverage == 0.0


def test_without_the_programs_nothing_is_known(node: EnergyNode) -> None:
    times, meter = EndedTimes(), make_meter(node, **P0_IDLE)
    assert meter._before is not None
    assert times.read(node, meter._before, meter._before) == {}
    assert times.errors == []
    path = node.path / PATH
    path.parent.mkdir(parents=True)
    path.write_bytes(b"something else")
    assert times.read(node, meter._before, meter._before) == {}
    assert len(times.errors) == 1
