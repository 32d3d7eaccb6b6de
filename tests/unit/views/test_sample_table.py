"""A sample as a table: jobs first, the system in one line, at most 50 lines."""

from __future__ import annotations

from typing import Any

import pytest

from ccagent.records.envelopes import (
    SampleAttributes,
    SampleJob,
    SampleJobCgroup,
    SampleProcess,
    SampleProcessGpu,
    SampleSystem,
)
from ccagent.records.json_encoding import ErrorObject
from ccagent.views.record_table import format_sample, is_system_user
from ccagent.views.terminal import Style, width_of


def process(pid: int, **more: Any) -> SampleProcess:
    return SampleProcess(pid=pid, cmd=more.pop("cmd", f"p{pid}"), **more)


def sample(*jobs: SampleJob, **more: Any) -> SampleAttributes:
    return SampleAttributes(
        time="2027-01-15T08:00:00Z", cluster="fox", node="n1",
        system=SampleSystem(boot="", cpus=[1] * 64, used_memory=147 << 20, load1=46.0),
        jobs=list(jobs), **more,
    )  # fmt: skip


def lines(attributes: SampleAttributes, width: int = 80) -> list[str]:
    return format_sample(attributes, width, Style())


JOB = SampleJob(
    job=4711, user="alice", epoch=0,
    processes=[process(10, cpu_util=3000.0, resident_memory=90 << 20, cmd="relax",
                       gpus=[SampleProcessGpu(index=0, uuid="x", gpu_util=91.0)]),
               process(11, cpu_util=130.0)],
    cgroup=SampleJobCgroup(used_memory=119 << 20, rss_memory=101 << 20, memory_limit=120 << 20),
)  # fmt: skip
SYSTEM = SampleJob(job=1, user="root", epoch=5, processes=[process(1), process(2, cpu_util=0.1)])


def test_jobs_then_the_system_then_processes() -> None:
    assert lines(sample(SYSTEM, JOB)) == [
        "n1 of fox  2027-01-15 08:00:00  load 46 0 0  64 CPUs  memory 147G used",
        "",
        "JOB      USER  PROC CPU%      MEM MEM% GPU GPU% READ WRITE BUSIEST",
        "4711     alice    2 3130 101/120G   84   1   91    0     0 relax",
        "(system) -        2   <1        0    -   -    -    0     0 p2",
        "",
        "PID USER   JOB CPU% MEM THR CPU TIME GPU% READ WRITE COMMAND",
        " 10 alice 4711 3000 90G   1     0:00   91    0     0 relax",
        " 11 alice 4711  130   0   1     0:00    -    0     0 p11",
        "  2 root     -   <1   0   1     0:00    -    0     0 p2",
        "  1 root     -    0   0   1     0:00    -    0     0 p1",
    ]


@pytest.mark.parametrize("jobs", [0, 1, 19, 25, 300])
def test_at_most_fifty_lines(jobs: int) -> None:
    found = lines(
        sample(
            SYSTEM,
            *(SampleJob(job=n, user="_u", epoch=0, processes=[process(n + p) for p in range(9)])
              for n in range(100, 100 + 10 * jobs, 10)),
            errors=[ErrorObject(time="", detail="x")],
        )
    )  # fmt: skip
    assert len(found) <= 50
    assert found[-1] == "incomplete: x"


def test_the_rest_is_one_line() -> None:
    many = SampleJob(
        job=7, user="_u", epoch=0,
        processes=[process(n, cpu_util=1.0, resident_memory=1024) for n in range(60)],
    )  # fmt: skip
    assert lines(sample(many))[-1] == "and 40 more processes: 40 % CPU, 40M memory"


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_names_of_processes_cannot_control_the_terminal(width: int) -> None:
    bad = SampleJob(
        job=7, user="\x1b[2J", epoch=0, processes=[process(1, cmd="\x1b]0;x\x07\u202e比較" * 9)]
    )  # fmt: skip
    found = lines(sample(bad), width)
    assert all(line.isprintable() for line in found)
    assert all(width_of(line) <= width for line in found[1:])


def test_users_below_1000_are_of_the_system() -> None:
    assert is_system_user("root")
    assert not is_system_user("_user_4711")
    assert not is_system_user("a\0b")
