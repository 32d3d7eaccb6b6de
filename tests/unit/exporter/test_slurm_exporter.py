"""Sums over squeue and sinfo, with programs that print what Slurm's do."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.errors import NotHereError, ProgramError
from ccagent.exporter.collector import Collector
from ccagent.exporter.slurm_controller import (
    FairshareCollector,
    LicensesCollector,
    ReservationsCollector,
    SchedulerCollector,
    parse_sdiag,
    parse_sshare,
)
from ccagent.exporter.slurm_exporter import SlurmExporterCollector
from ccagent.machine.background import BackgroundCall
from ccagent.machine.node import Node
from tests.support.scraped import collected, make

S = "\x1f"
QUEUE = "\n".join(
    S.join(row) + S
    for row in (
        ("long", "ada", "chem", "RUNNING", "8", "None", "cpu=8,gres/gpu:a100=2,gres/gpu=2"),
        ("long", "ada", "chem", "RUNNING", "4", "None", "cpu=4,mem=1G,node=1,gres/gpu=1"),
        ("long,short", "bob", "phys", "PENDING", "1", "Priority", "cpu=1,gres/gpu=4"),
        ("long", "bob", "phys", "PENDING", "1", "Dependency", "cpu=1"),
        ("long", "bob", "phys", "OUT_OF_MEMORY", "1", "None", "cpu=1"),
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
        ("n2", "down*", "0/0/32/32", "0", "4000", "gpu:a100:2", "gpu:0", "long*"),
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


SDIAG = """\
*******************************************************
sdiag output at Fri Jul 31 04:00:28 2026 (1785470428)
*******************************************************
Server thread count:  3
Agent queue size:     0
DBD Agent queue size: 1

Jobs submitted: 15
Jobs started:   11
Jobs completed: 9
Jobs canceled:  2
Jobs failed:    0

Main schedule statistics (microseconds):
\tLast cycle:   3508
\tMean cycle:   779
\tCycles per minute: 5

Backfilling stats
\tTotal backfilled jobs (since last slurm start): 7
\tTotal backfilled jobs (since last stats cycle start): 5
\tTotal backfilled heterogeneous job components: 0
\tLast cycle when: N/A
\tLast cycle: 12
\tMean cycle: 10
\tDepth Mean: 3

Remote Procedure Call statistics by message type
\tREQUEST_PARTITION_INFO                  ( 2009) count:48     ave_time:189    total_time:9096

Remote Procedure Call statistics by user
\troot            (       0) count:120    ave_time:900    total_time:108000

Pending RPC statistics
\tNo pending RPCs
"""
"""The form of sdiag, in Slurm 22.05 to 26.05."""
SSHARE = """\
root|||0.000000|500000||
 root|ada|1|0.100000|0|0.000000|1.000000
 chem||1|0.500000|100000|0.200000|0.600000
  chem|bob|parent|0.250000|50000|0.100000|0.750000
"""
LICENSES = "LicenseName=ansys@flex Total=100 Used=20 Free=80 Reserved=0 Remote=yes\n"
RESERVATIONS = (
    "ReservationName=maint StartTime=1756191600 EndTime=1756490400 Duration=3-11:00:00"
    " Nodes=n[1-2] NodeCnt=2 CoreCnt=64 Features=(null) PartitionName=(null) Flags=MAINT"
    " TRES=cpu=64 Users=(null) State=ACTIVE\n"
)
RESERVED_NODES = """\
NodeName=n1 State=MIXED+DRAIN+RESERVED
NodeName=n2 State=IDLE+RESERVED
NodeName=n3 State=ALLOCATED
"""


def with_program(
    kind: type[Collector], root: Path, setting: str, *texts: tuple[str, str]
) -> Collector:
    """Make a collector whose program prints the text of the first word among its arguments."""
    program = root / setting
    cases: list[str] = []
    for number, (word, text) in enumerate(texts):
        (root / f"{setting}.{number}").write_text(text)
        cases.append(f'case "$*" in *{word}*) cat {root}/{setting}.{number}; exit ;; esac')
    program.write_text("#!/bin/sh\n" + "\n".join(cases) + "\n")
    program.chmod(0o755)
    return make(kind, **{setting: str(program)})


def controller(root: Path) -> list[Collector]:
    """Make the collectors of sdiag, sshare and scontrol with programs that print these texts."""
    show = (("licenses", LICENSES), ("reservations", RESERVATIONS), ("nodes", RESERVED_NODES))
    return [
        with_program(SchedulerCollector, root, "sdiag", ("", SDIAG)),
        with_program(FairshareCollector, root, "sshare", ("", SSHARE)),
        with_program(LicensesCollector, root, "scontrol", *show),
        with_program(ReservationsCollector, root, "scontrol", *show),
    ]


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
    gpus = {name: number for name, number in found.items() if "gpus_running" in name}
    assert gpus == {
        'slurm_user_gpus_running{user="ada"}': 3, 'slurm_account_gpus_running{account="chem"}': 3,
    }  # fmt: skip


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
    gpus = [found[f"slurm_gpus_{name}"] for name in ("total", "alloc", "idle", "other")]
    assert gpus == [6, 3, 1, 2]
    assert found["slurm_gpus_utilization"] == 0.5
    assert found['slurm_node_status{node="n2",partition="long",status="down"}'] == 1
    assert found['slurm_partition_gpus_idle{partition="short"}'] == 1
    assert found["slurm_nodes_total"] == 2


def test_nodes_are_named_as_in_slurm_not_as_their_machine(tmp_path: Path, node: Node) -> None:
    collector = slurm(tmp_path)
    row = S.join(("idle", "0/8/0/8", "0", "8", "(null)", "(null)", "long")) + S
    named = f'echo "c1{S}{row}"; echo "c2{S}{row}"'
    (tmp_path / "sinfo").write_text(
        f'#!/bin/sh\ncase "$*" in *NodeHost*) echo "vm{S}{row}"; echo "vm{S}{row}";;'
        f" *NodeList*) {named};; esac\n"
    )
    found = collected(collector, node)
    assert found["slurm_nodes_total"] == 2
    assert found['slurm_node_cpu_total{node="c2",status="idle"}'] == 8


def test_each_node_counts_in_one_state(tmp_path: Path, node: Node) -> None:
    states = ("planned", "inval", "mixed-", "reboot^", "blocked", "drained*")
    nodes = "\n".join(
        S.join((f"n{number}", state, "0/4/0/4", "0", "8", "(null)", "(null)", "long")) + S
        for number, state in enumerate(states)
    )
    found = collected(slurm(tmp_path, nodes=nodes), node)
    counts = {name.removeprefix("slurm_nodes_"): number for name, number in found.items()
              if name.startswith("slurm_nodes_") and number}  # fmt: skip
    assert counts == {"total": 6, "planned": 1, "inval": 1, "mix": 1, "other": 2, "drain": 1}


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


def test_scheduler_fair_share_licences_and_reservations(tmp_path: Path, node: Node) -> None:
    scheduler, shares, licenses, reservations = (
        collected(each, node) for each in controller(tmp_path)
    )
    assert scheduler["slurm_scheduler_threads"] == 3
    assert scheduler["slurm_scheduler_dbd_queue_size"] == 1
    assert scheduler["slurm_scheduler_last_cycle"] == 3508
    assert scheduler["slurm_scheduler_backfill_last_cycle"] == 12
    assert scheduler["slurm_scheduler_backfilled_jobs_since_start_total"] == 7
    assert scheduler['slurm_rpc_stats{operation="REQUEST_PARTITION_INFO"}'] == 48
    assert scheduler['slurm_user_rpc_stats_total_time{user="root"}'] == 108000
    assert shares['slurm_account_fairshare{account="chem"}'] == 0.6
    assert shares['slurm_user_fairshare_norm_usage{account="chem",user="bob"}'] == 0.1
    assert 'slurm_user_fairshare_raw_shares{account="chem",user="bob"}' not in shares
    assert 'slurm_account_fairshare{account="root"}' not in shares
    assert licenses['slurm_license_free{license="ansys@flex"}'] == 80
    assert (
        reservations['slurm_reservation_end_time_seconds{reservation_name="maint"}'] == 1756490400
    )
    states = {
        name: reservations[f'slurm_reservation_nodes_{name}{{reservation="maint"}}']
        for name in ("mix", "drain", "idle", "healthy", "alloc")
    }
    assert states == {"mix": 1, "drain": 1, "idle": 1, "healthy": 1, "alloc": 0}
    (info,) = [name for name in reservations if name.startswith("slurm_reservation_info")]
    assert 'flags="MAINT",nodes="n[1-2]",partition="",reservation_name="maint"' in info


def test_a_cluster_without_reservations_is_not_asked_for_nodes(tmp_path: Path, node: Node) -> None:
    none = ("reservations", "No reservations in the system\n")
    collector = with_program(ReservationsCollector, tmp_path, "scontrol", none)
    assert collected(collector, node) == {}


@given(st.text())
def test_whatever_slurm_prints_has_values_or_none(text: str) -> None:
    for parse in (parse_sdiag, parse_sshare):
        for family, rows in parse(text).items():
            assert all(len(labels) == len(family.labels) for labels in rows)
