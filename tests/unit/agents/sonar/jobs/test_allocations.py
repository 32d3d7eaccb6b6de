"""Which cards a Slurm job was given: from cgroups, environments, and Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from ccagent.agents.sonar.jobs.allocations import (
    Allocation,
    Allocations,
    Claim,
    idle_cards,
    parse_devices,
    parse_environment,
    parse_job,
    parse_numbers,
)
from ccagent.agents.sonar.points import gpu_points
from ccagent.agents.sonar.process import ProcessSelection
from ccagent.agents.sonar.sources.procfs import ProcfsSource
from ccagent.machine.gpu.gpus import GpuReading
from ccagent.machine.gpu.vendor import Detail
from ccagent.records.envelopes import (
    SampleAttributes,
    SampleGpu,
    SampleJob,
    SampleProcess,
    SampleProcessGpu,
    SampleSystem,
)
from tests.support.tree import TreeNode

HERE = frozenset({"c1-1"})

# Slurm 22.05, `scontrol -d show job`, a job on one node.
DETAIL = b"     Nodes=c1-1 CPU_IDs=0 Mem=100 GRES=gpu:a100:1(IDX:0)\n"
JOB = (
    b"JobId=13 JobName=gpujob\n   UserId=alice(5001) GroupId=alice(5001) MCS_label=N/A\n"
    b"   NumNodes=1 NumCPUs=1 NumTasks=1 CPUs/Task=1 ReqB:S:C:T=0:0:*:*\n"
    b"   JOB_GRES=gpu:a100:1\n" + DETAIL + b"   MinCPUsNode=1 MinMemoryCPU=100M MinTmpDiskNode=0\n"
    b"   Command=(null)\n   WorkDir=/home/alice\n"
)

READING = GpuReading(
    cards=[
        SampleGpu(index=0, uuid="GPU-aaaa-0", ce_util=90),
        SampleGpu(index=1, uuid="GPU-bbbb-1"),
        SampleGpu(index=2, uuid="GPU-cccc-2"),
        SampleGpu(index=3, uuid="MIG-dddd-3"),
    ],
    without_utilization=frozenset({3}),
    devices={"195:0": 0, "195:5": 1, "195:2": 2},
    partitioned=frozenset({2}),
)
"""Cards whose indices aren't the numbers of their device files; one has an instance."""


class TestDevices:
    def test_only_what_is_listed_is_allowed(self) -> None:
        text = b"c 1:3 rwm\nc 195:0 rw\nb 8:0 r\nc 195:255 rw\nc 136:* rwm\n"
        assert parse_devices(text) == frozenset({"1:3", "195:0", "195:255", "136:*"})

    def test_where_all_are_allowed_those_denied_are_not_listed(self) -> None:
        assert parse_devices(b"a *:* rwm\n") is None

    @given(st.binary())
    def test_any_text_is_understood(self, content: bytes) -> None:
        parse_devices(content)


class TestEnvironment:
    @pytest.mark.parametrize(
        ("environment", "claim"),
        [
            (b"A=1\0SLURM_JOB_GPUS=0,2\0CUDA_VISIBLE_DEVICES=0,1\0", Claim(numbers=(0, 2))),
            (b"SLURM_STEP_GPUS=3\0", Claim(numbers=(3,))),
            (b"SLURM_JOB_GPUS=0-3\0", Claim(numbers=(0, 1, 2, 3))),
            (b"CUDA_VISIBLE_DEVICES=GPU-aaaa,MIG-b\0", Claim(uuids=("GPU-aaaa", "MIG-b"))),
            (b"ROCR_VISIBLE_DEVICES=1\0", Claim(numbers=(1,), relative=True)),
            (b"GPU_DEVICE_ORDINAL=0,1\0", Claim(numbers=(0, 1), relative=True)),
            (b"CUDA_VISIBLE_DEVICES=\0", None),
            (b"CUDA_VISIBLE_DEVICES=NoDevFiles\0", None),
            (b"CUDA_VISIBLE_DEVICES=-1\0", None),
            (b"SLURM_JOB_GPUS=999999999\0", None),
            (b"SLURM_JOB_GPUS=3-1\0", None),
            (b"XSLURM_JOB_GPUS=1\0", None),
            (b"SLURM_JOB_GPUS=\xc2\xb2\0", None),
            (b"", None),
        ],
    )
    def test_it_tells_numbers_or_uuids(self, environment: bytes, claim: Claim | None) -> None:
        assert parse_environment(environment) == claim

    @given(st.binary())
    def test_any_environment_is_understood(self, content: bytes) -> None:
        parse_environment(content)

    @given(st.text("0123456789,- ²x"))
    def test_numbers_are_few(self, text: str) -> None:
        assert all(0 <= number <= 255 for number in parse_numbers(text))


class TestJob:
    @pytest.mark.parametrize(
        ("gres", "numbers"),
        [
            (b"gpu:a100:1(IDX:0)", (0,)),
            (b"gpu:a100:3(IDX:0,2-3)", (0, 2, 3)),
            (b"gpu:2(IDX:0-1)", (0, 1)),
            (b"gpu:a100:1(IDX:0),gpu:v100:2(IDX:2-3),lic:1(IDX:7)", (0, 2, 3)),
            (b"lic:1(IDX:7)", ()),
            (b"", ()),
        ],
    )
    def test_its_cards_are_told(self, gres: bytes, numbers: tuple[int, ...]) -> None:
        text = JOB.replace(b"gpu:a100:1(IDX:0)", gres)
        assert parse_job(text, HERE) == Claim(numbers=numbers)

    def test_of_several_nodes_it_is_this_one(self) -> None:
        others = b"     Nodes=c1-[2-3] CPU_IDs=0 Mem=100 GRES=gpu:a100:1(IDX:1)\n"
        assert parse_job(JOB + others, HERE) == Claim(numbers=(0,))
        assert parse_job(JOB + others, frozenset({"c1-3"})) == Claim(numbers=(1,))
        assert parse_job(JOB + others, frozenset({"c1-4"})) is None

    def test_a_node_may_have_another_name_than_its_host(self) -> None:
        assert parse_job(JOB, frozenset({"elsewhere"})) == Claim(numbers=(0,))

    @pytest.mark.parametrize("before", [True, False])
    def test_a_text_of_the_user_makes_it_unknown_not_wrong(self, before: bool) -> None:
        line = b"     Nodes=c1-1 CPU_IDs=0 Mem=100 GRES=gpu:a100:8(IDX:0-7)\n"
        assert parse_job(line + JOB if before else JOB + line, HERE) is None

    def test_a_text_without_a_line_of_its_own_changes_nothing(self) -> None:
        name = b"gpujob      Nodes=c1-1 CPU_IDs=0 Mem=100 GRES=gpu:a100:8(IDX:0-7) x"
        assert parse_job(JOB.replace(b"gpujob", name), HERE) == Claim(numbers=(0,))

    @given(st.binary())
    def test_any_text_is_understood(self, content: bytes) -> None:
        parse_job(content, HERE)
        parse_job(DETAIL.replace(b"c1-1", content), HERE)


class Node:
    """A node on which jobs run, and a Slurm that can be asked."""

    def __init__(self, directory: Path) -> None:
        self.tree = TreeNode(directory / "root")
        self.asked = directory / "asked"
        self.answer = directory / "answer"
        self.answer.write_bytes(JOB)
        self.programs: dict[str, str] = {}
        for name, body in (("scontrol", f"exec cat {self.answer}"), ("squeue", "echo 5001")):
            program = directory / name
            program.write_text(f'#!/bin/sh\necho "{name} $*" >>{self.asked}\n{body}\n')
            program.chmod(0o755)
            self.programs[name] = str(program)
        self.allocations = Allocations(**self.programs)

    def job(self, number: int, *, devices: str = "a *:* rwm\n", slurm: str = "slurm") -> None:
        """Make the cgroups of a job (v1)."""
        cgroup = f"sys/fs/cgroup/devices/{slurm}/uid_1001/job_{number}/devices.list"
        path = self.tree.path / cgroup
        path.parent.mkdir(parents=True)
        path.write_text(devices)

    def process(self, pid: int, job: int, environment: str = "") -> None:
        """Start a process of a job."""
        self.tree.process(pid, cgroup=f"5:devices:/slurm/uid_1001/job_{job}/step_0\n")
        self.tree.write(f"{pid}/environ", environment)

    def read(self) -> list[Allocation]:
        source = ProcfsSource(self.tree, ProcessSelection())
        try:
            processes = [(each.pid, each.job, each.uid) for each in source.read()]
            return self.allocations.read(self.tree, processes, READING)
        finally:
            source.close()

    @property
    def questions(self) -> list[str]:
        return self.asked.read_text().splitlines() if self.asked.exists() else []


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


class TestAllocations:
    def test_a_device_cgroup_that_lists_tells(self, node: Node) -> None:
        node.job(13, devices="c 1:3 rwm\nc 195:5 rw\nc 195:255 rw\n")
        assert node.read() == [Allocation(13, 1001, (1,))]
        assert node.questions == []

    def test_slurms_numbers_are_those_of_the_device_files(self, node: Node) -> None:
        node.job(13)
        node.process(40, 13, "SLURM_JOB_GPUS=0,5\0")
        assert node.read() == [Allocation(13, 1001, (0, 1))]
        assert node.questions == []

    def test_an_instance_is_told_by_its_uuid(self, node: Node) -> None:
        node.process(40, 13, "CUDA_VISIBLE_DEVICES=MIG-dddd-3\0")
        assert node.read() == [Allocation(13, 1001, (3,))]

    def test_of_a_partitioned_card_nobody_has_all(self, node: Node) -> None:
        node.job(13, devices="c 195:2 rw\nc 195:0 rw\n")
        assert node.read() == [Allocation(13, 1001, (0,))]

    def test_slurm_is_asked_once_where_nothing_else_tells(self, node: Node) -> None:
        node.job(13)
        for _ in range(3):
            assert node.read() == [Allocation(13, 1001, (0,))]
        assert node.questions == ["scontrol -d show job 13"]

    def test_numbers_that_may_be_the_jobs_own_are_a_last_resort(self, node: Node) -> None:
        node.job(13)
        node.process(40, 13, "CUDA_VISIBLE_DEVICES=5\0")
        assert node.read() == [Allocation(13, 1001, (0,))]
        other = Allocations("/nowhere/scontrol", "/nowhere/squeue")
        node.allocations = other
        assert node.read() == [Allocation(13, 1001, (1,))]

    def test_one_machine_may_be_several_nodes(self, node: Node) -> None:
        node.answer.write_bytes(
            JOB.replace(b"Nodes=c1-1", b"Nodes=gpu-1") + DETAIL.replace(b"IDX:0", b"IDX:5")
        )
        node.job(13, slurm="slurm_gpu-1")
        assert node.read() == [Allocation(13, 1001, (0,))]

    def test_under_v2_a_job_without_processes_has_its_user_of_slurm(self, node: Node) -> None:
        scope = node.tree.path / "sys/fs/cgroup/system.slice/slurmstepd.scope/job_13"
        scope.mkdir(parents=True)
        assert node.read() == [Allocation(13, 5001, (0,))]
        assert node.questions[1:] == ["squeue --noheader --jobs=13 --format=%U"]

    def test_a_job_without_cards_is_none(self, node: Node) -> None:
        node.answer.write_bytes(JOB.replace(b"gpu:a100:1(IDX:0)", b""))
        node.job(13)
        assert node.read() == []
        assert node.read() == []
        assert len(node.questions) == 1

    def test_a_slurm_that_does_not_answer_is_left_alone_for_a_while(self, node: Node) -> None:
        Path(node.programs["scontrol"]).write_text(f"#!/bin/sh\necho >>{node.asked}\nexit 1\n")
        for job in range(13, 23):
            node.job(job)
        for _ in range(3):
            assert node.read() == []
        assert len(node.questions) == 1
        node.tree.still.sleep(700)
        node.read()
        assert len(node.questions) == 2

    def test_few_questions_at_a_time(self, node: Node) -> None:
        for job in range(13, 23):
            node.job(job)
        assert [len(node.read()) for _ in range(4)] == [4, 8, 10, 10]

    def test_jobs_that_end_are_forgotten(self, node: Node) -> None:
        node.process(40, 13, "SLURM_JOB_GPUS=0\0")
        assert len(node.read()) == 1
        node.tree.end(40)
        assert node.read() == []
        node.process(41, 13, "SLURM_JOB_GPUS=5\0")
        assert node.read() == [Allocation(13, 1001, (1,))]


class TestIdle:
    ALL = Allocation(13, 1001, (0, 1, 3))

    @pytest.mark.parametrize(
        ("used", "idle"),
        [
            ({}, [0, 1, 3]),
            ({0: 50.0, 1: 1.0, 3: 0.0}, []),
            ({0: 50.0, 1: 0.0}, [1, 3]),
            # It may be this job's process that keeps card 0 busy, although none is told of.
            ({0: 0.0}, [1, 3]),
            ({2: 9.0}, [0, 1, 3]),
            # Nobody tells whether a process on card 3, a MIG instance, does anything.
            ({0: 1.0, 1: 1.0, 3: 0.0}, []),
        ],
    )
    def test_a_card_is_idle_on_which_the_job_does_nothing(
        self, used: dict[int, float], idle: list[int]
    ) -> None:
        assert idle_cards(self.ALL, used, READING) == idle

    def test_a_card_that_cannot_tell_its_utilization_is_not_idle(self) -> None:
        reading = structs.replace(READING, without_utilization=frozenset({1}))
        assert idle_cards(Allocation(13, 1001, (1,)), {1: 0.0}, reading) == []
        assert idle_cards(Allocation(13, 1001, (1,)), {}, reading) == [1]

    def test_a_failing_card_is_not_idle(self) -> None:
        reading = GpuReading(cards=[SampleGpu(index=0, uuid="GPU-aaaa-0", failing=1)])
        assert idle_cards(Allocation(13, 1001, (0,)), {}, reading) == []

    def test_a_job_whose_cards_do_not_tell_has_no_utilization(self) -> None:
        process = SampleProcess(pid=1, gpus=[SampleProcessGpu(index=1, uuid="GPU-bbbb-1")])
        attributes = SampleAttributes(
            time="", cluster="c", node="n", system=SampleSystem(boot=""),
            jobs=[SampleJob(job=13, user="ada", epoch=0, processes=[process])],
        )  # fmt: skip
        names = {
            untold: {
                point.name
                for point in gpu_points(
                    attributes,
                    0.0,
                    [Allocation(13, 1001, (1,))],
                    structs.replace(READING, without_utilization=frozenset(untold)),
                )
            }
            for untold in ((), (1,))
        }
        assert names[()] - names[1,] == {"job_gpu_util"}

    def test_an_instance_gives_its_use_to_its_job(self) -> None:
        attributes = SampleAttributes(
            time="", cluster="c", node="n", system=SampleSystem(boot=""), jobs=[]
        )
        reading = GpuReading(
            cards=[SampleGpu(index=0, uuid="GPU-a"), SampleGpu(index=1, uuid="MIG-a", ce_util=80)],
            instances=frozenset({1}),
            without_utilization=frozenset({0}),
            details={1: [Detail("sm_active", 40_260)]},
        )
        points = {
            (point.name, point.tags["stype-id"]): point.value
            for point in gpu_points(
                attributes, 0.0, [Allocation(13, 1001, (1,)), Allocation(14, 1001, (0,))], reading
            )
        }
        assert points["job_gpu_util", "13"] == 80
        assert points["job_gpu_sm_active", "13"] == 40.3
        assert points["job_gpus_idle", "13"] == 0
        assert ("job_gpu_util", "14") not in points
        assert ("job_gpu_sm_active", "14") not in points
