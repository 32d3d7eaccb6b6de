"""Sums over squeue and sinfo, with programs that print what Slurm's do."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccagent.errors import NotHereError, ProgramError
from ccagent.exporter.collector import Collector
from ccagent.exporter.slurm_exporter import SlurmExporterCollector
from ccagent.machine.background import BackgroundCall
from ccagent.machine.node import Node
from tests.support.scraped import collected, make

S = "\x1f"
QUEUE = "\n".join(
    S.join(row)
    for row in (
        ("long", "ada", "chem", "RUNNING", "8", "None", "1"),
        ("long", "ada", "chem", "RUNNING", "4", "None", "1"),
        ("long,short", "bob", "phys", "PENDING", "1", "Priority", "1"),
        ("long", "bob", "phys", "PENDING", "1", "Dependency", "1"),
        ("long", "bob", "phys", "OUT_OF_MEMORY", "1", "None", "1"),
        ("a line", "of another form"),
    )
)
NODES = "\n".join(
    S.join(row) + S
    for row in (
        (
            "n1",
            "mixed",
            "12/20/0/32",
            "1000",
            "4000",
            "gpu:a100:4(S:0-1)",
            "gpu:a100:3(IDX:0-2)",
            "long*",
        ),
        (
            "n1",
            "mixed",
            "12/20/0/32",
            "1000",
            "4000",
            "gpu:a100:4(S:0-1)",
            "gpu:a100:3(IDX:0-2)",
            "short",
        ),
        ("n2", "down*", "0/0/32/32", "0", "4000", "(null)", "gpu:0", "long*"),
    )
)


def slurm(root: Path, queue: str = QUEUE, nodes: str = NODES, *, status: int = 0) -> Collector:
    """Make a collector with programs that print these texts."""
    names: dict[str, str] = {}
    for name, text in (("squeue", queue), ("sinfo", nodes)):
        (root / f"{name}.txt").write_text(text + "\n")
        program = root / name
        program.write_text(
            f"#!/bin/sh\necho x >>{root}/{name}.runs\ncat {root}/{name}.txt\nexit {status}\n"
        )
        program.chmod(0o755)
        names[name] = str(program)
    return make(SlurmExporterCollector, **names)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(root=str(tmp_path), hostname="n", cluster="c")


def test_queue_partitions_and_people(tmp_path: Path, node: Node) -> None:
    found = collected(slurm(tmp_path), node)
    assert found["slurm_queue_running"] == 2
    assert found["slurm_queue_pending"] == 2
    assert found["slurm_queue_pending_dependency"] == 1
    assert found["slurm_queue_suspended"] == 0
    assert found['slurm_partition_jobs_pending{partition="long"}'] == 2
    assert found['slurm_partition_jobs_pending{partition="short"}'] == 1
    assert found['slurm_partition_jobs_running{partition="long"}'] == 2
    assert (found["slurm_jobs_running"], found["slurm_jobs_cores_running"]) == (2, 12)
    assert found['slurm_user_cpus_running{user="ada"}'] == 12
    assert found['slurm_account_jobs_pending{account="phys"}'] == 2


def test_each_task_of_an_array_is_a_job(tmp_path: Path, node: Node) -> None:
    collector = slurm(tmp_path)
    program = tmp_path / "squeue"
    program.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/arguments\n')
    collected(collector, node)
    assert "--array" in (tmp_path / "arguments").read_text().split()


def test_nodes_count_once_and_in_each_of_their_partitions(tmp_path: Path, node: Node) -> None:
    found = collected(slurm(tmp_path), node)
    assert (found["slurm_nodes_mix"], found["slurm_nodes_down"], found["slurm_nodes_idle"]) == (
        1, 1, 0,
    )  # fmt: skip
    assert found["slurm_cpus_total"] == 64
    assert found["slurm_cpus_other"] == 32
    assert found['slurm_partition_cpus_total{partition="long"}'] == 64
    assert found['slurm_partition_cpus_allocated{partition="short"}'] == 12
    assert found['slurm_node_mem_alloc{node="n1",status="mixed"}'] == 1000
    assert [found[f"slurm_gpus_{name}"] for name in ("total", "alloc", "idle")] == [4, 3, 1]
    assert found["slurm_gpus_utilization"] == 0.75
    assert found['slurm_partition_gpus_idle{partition="short"}'] == 1
    assert found["slurm_nodes_total"] == 2


def test_a_scrape_soon_after_asks_slurm_no_more(tmp_path: Path, node: Node) -> None:
    collector = slurm(tmp_path)
    first = collected(collector, node)
    for _ in range(3):
        assert collected(collector, node) == first
    assert (tmp_path / "squeue.runs").read_text() == "x\n"


def test_a_controller_that_is_down_makes_no_later_scrape_long(
    tmp_path: Path, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    wait = BackgroundCall[object].wait

    def note(call: BackgroundCall[object], seconds: float) -> bool:
        waits.append(seconds)
        return wait(call, 20.0)

    monkeypatch.setattr(BackgroundCall, "wait", note)
    collector = slurm(tmp_path, status=1)
    for _ in range(3):
        with pytest.raises(ProgramError, match="exit status 1"):
            collected(collector, node)
    assert waits[0] > 10
    assert max(waits[1:]) < 1


def test_a_node_without_slurm(node: Node) -> None:
    with pytest.raises(NotHereError):
        collected(make(SlurmExporterCollector, squeue="no-such-squeue"), node)


def test_a_controller_that_is_gone(tmp_path: Path, node: Node) -> None:
    with pytest.raises(ProgramError):
        collected(slurm(tmp_path, status=1), node)


@pytest.mark.parametrize("text", ["", "\x1f" * 50, "ä\x00\x1f" * 7, "9" * 5000])
def test_any_text_is_taken(tmp_path: Path, node: Node, text: str) -> None:
    assert collected(slurm(tmp_path, text, text), node)["slurm_queue_running"] == 0
