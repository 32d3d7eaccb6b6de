"""Checks of the machine on trees: control groups, kernel, power, network, clock, disk."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.lustre.jobstats.setup import find_clients, find_targets
from ccagent.agents.lustre.jobstats.source import JobstatsSource
from ccagent.agents.metrics.perf.call import explain_error
from ccagent.agents.metrics.perf.reader import assess_counters, find_counters
from ccagent.agents.metrics.readers.infiniband import find_ports
from ccagent.agents.metrics.readers.power import find_zones
from ccagent.doctor.daemon import check_service
from ccagent.doctor.identity import (
    ClockState,
    assess_clock,
    compare_clocks,
    parse_timex,
    read_timex,
)
from ccagent.doctor.space import Room, assess_space, check_space, format_size
from ccagent.errors import NotHereError, UnparsableError
from ccagent.machine.requirements import (
    KernelFacts,
    assess_kernel,
    find_cgroups,
    find_job_groups,
    find_task_iterator,
    is_old,
    parse_lockdown,
)
from ccagent.machine.sensors import FIX
from tests.support.doctor_site import found, mounted
from tests.support.tree import TreeNode

V2 = "29 23 0:26 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "31 23 0:28 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "33 31 0:30 / /sys/fs/cgroup/blkio rw - cgroup cgroup rw,blkio\n"
    "34 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
)
MEMORY = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
UNIFIED = "36 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"


@pytest.fixture
def node(tmp_path: Path) -> TreeNode:
    return TreeNode(tmp_path)


def put(node: TreeNode, path: str, text: str) -> None:
    place = node.path / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


@pytest.mark.parametrize(
    ("mounts", "controllers", "state", "said"),
    [
        (V2, "cpuset cpu io memory pids", "good", "version 2 with cpuset, cpu, io, memory, pids"),
        (V2, "cpuset cpu io pids", "problem", "but not memory"),
        (V2, "", "problem", "version 2 with no controllers, but not memory, cpu, io"),
        (V1 + MEMORY, "", "good", "version 1 with blkio, cpu, cpuacct, memory"),
        (V1, "", "problem", "version 1 with blkio, cpu, cpuacct, but not memory"),
        (V1 + MEMORY + UNIFIED, "", "good", "version 1 (and 2 beside it, for systemd)"),
        ("", "", "missing", "none are mounted below /sys/fs/cgroup"),
    ],
)
def test_control_groups(
    node: TreeNode, mounts: str, controllers: str, state: str, said: str
) -> None:
    node.write("self/mountinfo", mounted(more=mounts))
    put(node, "sys/fs/cgroup/cgroup.controllers", controllers + "\n")
    finding = find_cgroups(node)
    assert finding.state == state
    assert said in finding.found
    assert ("cgroup_enable=memory" in finding.fix) == ("not memory" in finding.found)


def test_control_groups_of_jobs(node: TreeNode) -> None:
    node.write("self/mountinfo", mounted(more=V2))
    assert find_job_groups(node).state == "missing"
    scope = node.path / "sys/fs/cgroup/system.slice/slurmstepd.scope"
    for job in ("job_12", "job_13"):
        (scope / job).mkdir(parents=True)
    finding = find_job_groups(node)
    assert (finding.state, finding.found) == ("good", "Slurm makes them; 2 jobs have one now")


NEW = KernelFacts("6.12.0", has_btf=True, library="", lockdown="", pinned=None)


@pytest.mark.parametrize(
    ("kernel", "state", "said", "advised"),
    [
        (NEW._replace(pinned=True), "good", "can be read", ""),
        (NEW._replace(pinned=False), "problem", "may not read it", "group"),
        (NEW, "missing", "kernel 6.12.0 with BTF and libbpf supports it", "optional"),
        (NEW._replace(has_btf=False), "missing", "the kernel has no BTF", "/proc instead"),
        (NEW._replace(release="5.4.0-1"), "missing", "5.4.0-1 is older than 5.8", "/proc instead"),
        (
            NEW._replace(library="libbpf is not installed"),
            "missing",
            "libbpf is not installed",
            "install it, then",
        ),
        (NEW._replace(lockdown="confidentiality"), "missing", "lockdown", "/proc instead"),
        (NEW._replace(pinned=True, has_own_pids=True), "missing", "pid namespace", "on the node"),
        (NEW._replace(lockdown="integrity"), "missing", "supports it", "optional"),
        # What is pinned works, whatever could be loaded.
        (NEW._replace(has_btf=False, pinned=True), "good", "can be read", ""),
    ],
)
def test_task_iterator(kernel: KernelFacts, state: str, said: str, advised: str) -> None:
    finding = assess_kernel(kernel)
    assert finding.state == state
    assert said in finding.found
    assert advised in finding.fix


def test_task_iterator_of_a_tree(node: TreeNode) -> None:
    node.write("sys/kernel/osrelease", "5.14.0-427.el9.x86_64\n")
    assert "no BTF" in find_task_iterator(node).found
    put(node, "sys/kernel/btf/vmlinux", "x")
    put(node, "sys/kernel/security/lockdown", "none integrity [confidentiality]\n")
    assert "lockdown" in find_task_iterator(node).found
    put(node, "run/ccagent-kernel/tasks", "")
    assert find_task_iterator(node).state == "good"


@pytest.mark.parametrize(
    ("release", "old"),
    [
        ("4.18.0-553.el8_10.x86_64", False),
        ("4.18.0", True),
        ("5.7.19", True),
        ("5.8.0", False),
        ("6.1", False),
        ("", False),
    ],
)
def test_el_8_has_what_later_kernels_have(release: str, old: bool) -> None:
    assert is_old(release) == old


def test_lockdown() -> None:
    assert parse_lockdown("none [integrity] confidentiality") == "integrity"
    assert not parse_lockdown("")


def test_energy_counters(node: TreeNode) -> None:
    assert find_zones(node).state == "missing"
    for zone in ("intel-rapl:0", "intel-rapl:0:0", "intel-rapl-mmio:0", "dtpm"):
        put(node, f"sys/class/powercap/{zone}/energy_uj", "1\n")
    finding = find_zones(node)
    assert (finding.state, finding.found) == ("good", "2 zones can be read")


def test_energy_counters_that_only_root_may_read(
    node: TreeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    for zone in ("intel-rapl:0", "intel-rapl:0:0"):
        put(node, f"sys/class/powercap/{zone}/energy_uj", "1\n")

    def is_readable(path: str) -> bool:
        return "rapl:0:0" in path

    monkeypatch.setattr(node, "is_readable", is_readable)
    result = find_zones(node)
    assert (result.state, result.fix) == ("problem", FIX)
    assert "1 of 2 zones" in result.found
    assert "chgrp ccagent" in result.fix


def test_hardware_counters(node: TreeNode) -> None:
    node.write("sys/kernel/perf_event_paranoid", "2\n")
    put(node, "sys/bus/event_source/devices/software/type", "1\n")
    finding = find_counters(node)
    assert finding.state == "missing"
    assert "perf_event_paranoid is 2" in finding.found
    put(node, "sys/bus/event_source/devices/cpu/type", "4\n")
    assert find_counters(node).state == "good"


@pytest.mark.parametrize("paranoid", ["4", "3", "2", "1"])
def test_hardware_counters_that_are_not_permitted(paranoid: str) -> None:
    refusal = explain_error(PermissionError(13, ""), paranoid)
    finding = assess_counters(["cpu_core", "cpu_atom"], paranoid, refusal)
    assert finding.state == "problem"
    assert f" is {paranoid}" in finding.found
    assert "CAP_PERFMON" in finding.fix


def test_a_pmu_that_counts_nothing() -> None:
    assert assess_counters(["cpu"], "0", NotHereError("perf_event_open")).state == "missing"


def test_infiniband(node: TreeNode) -> None:
    assert find_ports(node).state == "missing"
    put(node, "sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n")
    assert "no port is active: mlx5_0/1" in find_ports(node).found
    put(node, "sys/class/infiniband/mlx5_1/ports/1/state", "4: ACTIVE\n")
    finding = find_ports(node)
    assert (finding.state, finding.found) == ("good", "1 of 2 ports active: mlx5_1/1")
    put(node, "sys/class/infiniband/mlx5_1/ports/1/state", "what\n")
    assert "mlx5_1/1 can't be read" in find_ports(node).found


def test_lustre(node: TreeNode) -> None:
    source = JobstatsSource("files", "lctl", "", 1.0)
    assert find_targets(node, source).state == find_clients(node).state == "missing"
    put(node, "proc/fs/lustre/obdfilter/fs-OST0000/job_stats", "job_stats:\n")
    put(node, "sys/fs/lustre/llite/fs-ffff/uuid", "x")
    assert find_targets(node, source).found == "fs-OST0000"
    assert find_clients(node).found == "fs-ffff"


def timex(status: int, *, offset: int = 0, error: int = 0) -> bytes:
    return struct.pack("=I4xqqqqi4x", 0, offset, 0, error, 0, status).ljust(208, b"\0")


def test_clock_as_the_kernel_tells_it() -> None:
    assert parse_timex(timex(0x2001, offset=-1500, error=16000)) == (True, -1.5e-06, 0.016)
    assert parse_timex(timex(0x0001, offset=1500)).offset == pytest.approx(0.0015)
    assert not parse_timex(timex(0x40)).is_synchronised
    assert parse_timex(read_timex()).error >= 0


@pytest.mark.parametrize(
    ("state", "expected", "advised"),
    [
        (ClockState(is_synchronised=True, offset=0.0001, error=0.02), "good", ""),
        (ClockState(is_synchronised=False, offset=0.0, error=16.0), "problem", "chronyd"),
        (ClockState(is_synchronised=True, offset=-3.0, error=0.02), "problem", "chronyc tracking"),
        (ClockState(is_synchronised=True, offset=0.0, error=7.0), "problem", "time servers"),
    ],
)
def test_clock(state: ClockState, expected: str, advised: str) -> None:
    finding = assess_clock(state)
    assert finding.state == expected
    assert advised in finding.fix
    assert bool(finding.impact) == (expected == "problem")


@pytest.mark.parametrize(
    ("ahead", "doubt", "said"),
    [
        (1.5, 0.0, "the same, within 2.0 s"),
        (-2.4, 0.5, "the same, within 2.5 s"),
        (60.2, 0.1, "60 s ahead of the other"),
        (-3600.0, 0.1, "3600 s behind the other"),
    ],
)
def test_clock_against_that_of_a_sink(ahead: float, doubt: float, said: str) -> None:
    finding = compare_clocks("store", ahead, doubt)
    assert finding.subject == "clock, against sink store"
    assert said in finding.found


@given(st.binary(max_size=300))
def test_any_struct_is_a_clock_or_refused(content: bytes) -> None:
    try:
        state = parse_timex(content)
    except UnparsableError:
        assert len(content) < 48
    else:
        assert assess_clock(state).found


DISK = Room("xfs", free=10 * 2**30, inodes=10_000, is_writable=True)


@pytest.mark.parametrize(
    ("room", "state", "said"),
    [
        (DISK, "good", "/s: 10.0 GiB free on xfs, outboxes may take 1.0 GiB"),
        (DISK._replace(free=2**29), "problem", "512 MiB free on xfs, where outboxes may take"),
        (DISK._replace(inodes=99), "problem", "but 99 inodes"),
        (DISK._replace(inodes=None), "good", "10.0 GiB"),
        (DISK._replace(is_writable=False), "problem", "this user cannot write /s"),
        (DISK._replace(type="tmpfs"), "good", "not the machine"),
        (DISK._replace(type="nfs4"), "problem", "free on nfs4, on which several hosts"),
        (DISK._replace(foreign=("/s/a.queue",)), "problem", "this user cannot write /s/a.queue"),
        (NotHereError("/s: Input/output error"), "problem", "/s: Input/output error"),
    ],
)
def test_room_for_the_outbox(room: Room | NotHereError, state: str, said: str) -> None:
    finding = assess_space("/s", room, 2**30)
    assert finding.state == state
    assert said in finding.found


def test_outboxes_of_all_sinks_on_a_network_count(node: TreeNode) -> None:
    node.write("self/mountinfo", mounted())
    space = os.statvfs(node.path)
    limit = space.f_bavail * space.f_frsize // 2
    urls = {"a": "http://a/", "b": "http://b/", "c": "stdout:"}
    sinks = {name: {"url": url} for name, url in urls.items()}
    outbox = {"directory": "/var/lib/ccagent", "max-bytes": limit // 2}
    assert found(check_space, node, sinks=sinks, outbox=outbox)["outbox"].state == "good"
    outbox["max-bytes"] = limit * 2
    assert found(check_space, node, sinks=sinks, outbox=outbox)["outbox"].state == "problem"


def test_an_outbox_in_memory_is_a_loss_only_with_a_network(node: TreeNode) -> None:
    assert found(check_space, node)["outbox"].state == "good"
    finding = found(check_space, node, sinks={"a": {"url": "http://a/"}})["outbox"]
    assert finding.state == "missing"
    assert "outbox.directory" in finding.fix


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**50, "1024 TiB")]
)
def test_sizes(number: int, text: str) -> None:
    assert format_size(number) == text


def test_lock_directory(node: TreeNode) -> None:
    assert not found(check_service, node)
    table = {"lock-directory": "/run/ccagent"}
    finding = found(check_service, node, **table)["lock-directory"]
    assert finding.stops == ["the daemon"]
    assert finding.found == "/run/ccagent: it does not exist"
    (node.path / "run/ccagent").mkdir(parents=True)
    assert found(check_service, node, **table)["lock-directory"].state == "good"


def test_a_directory_that_comes_with_the_service_is_no_problem(node: TreeNode) -> None:
    table = {"lock-directory": "/run/ccagent"}
    put(node, "usr/lib/systemd/system/ccagent.service", "[Service]\nRuntimeDirectory=ccagent\n")
    assert found(check_service, node, **table)["lock-directory"].state == "good"
    put(node, "etc/systemd/system/ccagent.service", "[Service]\nRuntimeDirectory=other more\n")
    assert found(check_service, node, **table)["lock-directory"].state == "problem"
