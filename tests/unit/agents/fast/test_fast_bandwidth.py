"""Which measurements are refused, and what a measured bandwidth is compared with."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from ccagent.agents.fast import bandwidth
from ccagent.agents.fast.bandwidth import (
    BandwidthReference,
    BandwidthService,
    Measured,
    buffer_size,
    check_cores,
    compact_order,
    counts_to_measure,
    find_owners,
    last_cache,
    measure_now,
    measure_reference,
    parse_size,
    read_processor,
    read_reference,
    write_reference,
)
from ccagent.agents.fast.kept_state import MonitoredMachine
from ccagent.errors import NotHereError, ProgramError, UnparsableError
from ccagent.machine.own_memory import read_resident
from tests.support.tree import TreeNode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ccagent.agents.fast.messages.structures import BandwidthResponse


def always(value: object) -> Callable[..., Any]:
    """Return a function that returns this, whatever it is called with."""

    def call(*_: object, **__: object) -> object:
        return value

    return call


class BandwidthNode(TreeNode):
    """Two sockets of two cores with two threads: 0-3 are first threads, 4-7 second ones."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.file("sys/devices/system/cpu/online", "0-7\n")
        self.write("cpuinfo", "processor : 0\nmodel name : Test 9000\n")
        self.write("sys/kernel/osrelease", "6.1.0\n")
        self.write("meminfo", "MemTotal: 64000000 kB\nMemAvailable: 32000000 kB\n")
        for cpu in range(8):
            base = f"sys/devices/system/cpu/cpu{cpu}"
            socket, core = divmod(cpu % 4, 2)
            self.file(f"{base}/topology/physical_package_id", f"{socket}\n")
            self.file(f"{base}/topology/core_id", f"{core}\n")
            self.file(f"{base}/topology/core_cpus_list", f"{cpu % 4},{cpu % 4 + 4}\n")
            shared = "0-1,4-5" if socket == 0 else "2-3,6-7"
            for index, (size, cpus) in enumerate([("32K", str(cpu)), ("32768K", shared)]):
                self.file(f"{base}/cache/index{index}/size", f"{size}\n")
                self.file(f"{base}/cache/index{index}/shared_cpu_list", f"{cpus}\n")

    def file(self, name: str, content: str) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


@pytest.fixture
def node(tmp_path: Path) -> BandwidthNode:
    return BandwidthNode(tmp_path / "node")


def test_cores_are_ordered_compactly(node: BandwidthNode) -> None:
    assert compact_order(node, range(8)) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert compact_order(node, [5, 3, 0, 4]) == [0, 5, 3, 4]


def test_first_threads_come_first_where_core_ids_repeat(node: BandwidthNode) -> None:
    for cpu in range(8):
        # Two dies of two cores with two threads: the numbers of cores start again in each die.
        base = f"sys/devices/system/cpu/cpu{cpu}/topology"
        node.file(f"{base}/physical_package_id", "0\n")
        node.file(f"{base}/core_id", f"{cpu // 2 % 2}\n")
        node.file(f"{base}/core_cpus_list", f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}\n")
    assert compact_order(node, range(8)) == [0, 2, 4, 6, 1, 3, 5, 7]


def test_the_last_cache_is_the_one_that_counts(node: BandwidthNode) -> None:
    assert last_cache(node, 2) == (32 * 1024**2, frozenset({2, 3, 6, 7}))
    assert parse_size(b"1M\n") == 1024**2
    with pytest.raises(UnparsableError):
        parse_size(b"large\n")


def test_buffers_are_several_times_the_share_of_the_cache(node: BandwidthNode) -> None:
    assert buffer_size(node, [0]) == 128 * 1024**2
    assert buffer_size(node, [0, 1]) == 64 * 1024**2
    assert buffer_size(node, [0, 2]) == 128 * 1024**2
    node.write("meminfo", "MemTotal: 64000000 kB\nMemAvailable: 400000 kB\n")
    with pytest.raises(
        ProgramError, match="128 MiB of buffers are needed, but only 97 MiB may be used"
    ):
        buffer_size(node, [0])


def test_the_limit_of_our_own_control_group_counts(node: BandwidthNode) -> None:
    node.write("self/cgroup", "0::/system.slice/ccagent.service\n")
    group = "sys/fs/cgroup/system.slice/ccagent.service"
    node.file(f"{group}/memory.max", "max\n")
    assert buffer_size(node, [0]) == 128 * 1024**2
    limit = read_resident() + 192 * 1024**2
    node.file("sys/fs/cgroup/system.slice/memory.max", f"{limit - 1024**2}\n")
    with pytest.raises(ProgramError, match="12[0-7] MiB may be used; see MemoryMax="):
        buffer_size(node, [0])


def test_cores_that_do_not_exist_are_refused(node: BandwidthNode) -> None:
    assert check_cores(node, [0, 8, 9], ()) == "no core 8, 9 on this node"
    assert check_cores(node, [0, 7], ()) == ""


def test_cores_of_a_job_are_refused(node: BandwidthNode) -> None:
    job = "sys/fs/cgroup/system.slice/slurmstepd.scope/job_42"
    node.file(f"{job}/cpuset.cpus.effective", "2-3\n")
    assert find_owners(node, (), range(8)) == {2: "job 42", 3: "job 42"}
    assert check_cores(node, [1, 3], ()) == "core 3 is owned by job 42"
    assert check_cores(node, [0, 1], ()) == ""


def test_cores_of_a_job_in_version_1_are_refused(node: BandwidthNode) -> None:
    for controller in ("cpuset", "memory"):
        node.file(f"sys/fs/cgroup/{controller}/slurm/uid_1/job_42/cgroup.procs", "")
    node.file("sys/fs/cgroup/cpuset/slurm/uid_1/job_42/cpuset.cpus", "5\n")
    assert find_owners(node, (), range(8)) == {5: "job 42"}


def test_a_job_that_is_not_confined_owns_all_cores(node: BandwidthNode) -> None:
    node.file("sys/fs/cgroup/memory/slurm/uid_1/job_42/memory.usage_in_bytes", "1\n")
    assert find_owners(node, (), range(8)).keys() == set(range(8))


def test_cores_of_virtual_cpus_are_refused_unless_suspended(node: BandwidthNode) -> None:
    node.process(100)
    for thread, command, cpus in (
        (100, "qemu", "0-7"),
        (101, "CPU 0/TCG", "1"),
        (102, "CPU 1/KVM", "2"),
    ):
        node.write(f"100/task/{thread}/status", f"Cpus_allowed_list:\t{cpus}\n")
        node.write(f"100/task/{thread}/comm", f"{command}\n")
    machine = MonitoredMachine(name="vm-1", process_id=100, start=50000)
    assert find_owners(node, [machine], range(8)) == {1: "machine vm-1", 2: "machine vm-1"}
    asleep = MonitoredMachine(name="vm-1", process_id=100, start=50000, is_suspended=True)
    assert find_owners(node, [asleep], range(8)) == {}


def test_a_suspended_machine_that_has_ended_frees_no_cores_of_the_next_one(
    node: BandwidthNode,
) -> None:
    scope = "sys/fs/cgroup/machine.slice/machine-qemu\\x2d1\\x2dvm\\x2d7.scope"
    node.file(f"{scope}/cgroup.procs", "100\n")
    node.process(100)
    node.write("100/task/100/status", "Cpus_allowed_list:\t6-7\n")
    node.write("100/task/100/comm", "qemu\n")
    ended = MonitoredMachine(name="vm-1", process_id=100, start=999, is_suspended=True)
    assert find_owners(node, [ended], range(8)) == {6: "machine vm-7", 7: "machine vm-7"}


def test_a_machine_that_only_libvirt_knows_owns_its_cores(node: BandwidthNode) -> None:
    scope = "sys/fs/cgroup/machine.slice/machine-qemu\\x2d1\\x2dvm\\x2d7.scope"
    node.file(f"{scope}/libvirt/emulator/cgroup.procs", "100\n")
    node.process(100)
    node.write("100/task/100/status", "Cpus_allowed_list:\t6-7\n")
    node.write("100/task/100/comm", "qemu\n")
    assert find_owners(node, (), range(8)) == {6: "machine vm-7", 7: "machine vm-7"}


def _reference(**changes: object) -> BandwidthReference:
    values: dict[str, object] = {
        "model": "Test 9000", "cpus": tuple(range(8)), "kernel": "6.1.0",
        "by_count": {1: 10.0, 2: 18.0, 4: 30.0}, "time": 1.0,
    }  # fmt: skip
    return BandwidthReference(**{**values, **changes})  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


def test_a_reference_between_two_is_in_proportion() -> None:
    reference = _reference()
    assert [reference.expected(count) for count in (1, 2, 3, 4, 9)] == [10, 18, 24, 30, 30]
    assert reference.value_of(9.0, 1) == 0.9
    assert reference.value_of(20.0, 1) == 1.0
    assert reference.value_of(0.1, 1) == 0.33


def test_processors_of_one_implementer_are_apart(node: BandwidthNode) -> None:
    models: list[str] = []
    for part in ("0xd0c", "0xd4f"):
        node.write("cpuinfo", f"processor : 0\nCPU implementer : 0x41\nCPU part : {part}\n")
        models.append(read_processor(node).model)
    assert models == ["Neoverse N1", "Neoverse V2"]


def test_a_reference_is_kept_for_the_same_machine(node: BandwidthNode, tmp_path: Path) -> None:
    place = str(tmp_path)
    with pytest.raises(NotHereError, match="no reference; on the idle node, run: ccagent"):
        read_reference(node, place)
    write_reference(place, _reference())
    assert read_reference(node, place) == _reference()
    for key, value, name in (
        ("model", "X", "processor"),
        ("cpus", (0,), "CPUs"),
        ("kernel", "5", "kernel"),
    ):
        write_reference(place, _reference(**{key: value}))
        with pytest.raises(NotHereError, match=f"of another {name}"):
            read_reference(node, place)
    write_reference(place, _reference(by_count={}))
    with pytest.raises(NotHereError):
        read_reference(node, place)


def test_few_numbers_of_cores_are_measured_on_large_nodes() -> None:
    assert counts_to_measure(1) == [1]
    assert counts_to_measure(8) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert counts_to_measure(128) == [*range(1, 9), 12, 18, 27, 40, 60, 90, 128]


def test_a_reference_of_a_busy_node_is_refused(
    node: BandwidthNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ccagent.agents.fast.bandwidth.measure", always(Measured(1e9, 0.5)))
    with pytest.raises(ProgramError, match="1 cores: the probe got 50 % of their time"):
        measure_reference(node, always(None))


@pytest.mark.parametrize(
    ("measured", "value", "is_valid"),
    [
        (Measured(9.0, 1.0), 0.9, True),
        (Measured(12.0, 0.95), 1.0, True),
        (Measured(5.0, 0.8), 0.5, False),
    ],
)
def test_a_probe_that_did_not_run_is_marked_invalid(
    node: BandwidthNode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    measured: Measured,
    value: float,
    is_valid: bool,
) -> None:
    write_reference(str(tmp_path), _reference())
    monkeypatch.setattr(bandwidth, "measure", always(measured))
    found = measure_now(node, [0], str(tmp_path), ())
    assert (found.value, found.is_valid, found.cpu_share) == (value, is_valid, measured.share)
    assert bool(found.details) != is_valid


def test_a_probe_that_fails_is_an_answer_without_a_value(
    node: BandwidthNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_reference(str(tmp_path), _reference())
    monkeypatch.setattr(node, "run", always(b"[[0, 1.0]]"))
    found = measure_now(node, [0], str(tmp_path), ())
    assert found.value is None
    assert "printed unknown output" in found.details


def test_one_measurement_at_a_time_and_no_more_than_allowed(
    node: BandwidthNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    done: list[BandwidthResponse] = []

    def measure_slowly(_: TreeNode, cores: Sequence[int], *__: object) -> BandwidthResponse:
        begun.set()
        assert go_on.wait(30)
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(bandwidth, "measure_now", measure_slowly)
    ended = threading.Event()

    def when_done(response: BandwidthResponse) -> None:
        done.append(response)
        ended.set()

    measurements = BandwidthService(node, "", 2.0)
    assert measurements.start([0], [], when_done) == ""
    assert begun.wait(30)
    assert measurements.start([1], [], when_done) == "another measurement is running"
    go_on.set()
    assert ended.wait(30)
    assert done[0].details == "failed: a bug"
    assert "less than 2 s ago" in measurements.start([1], [], when_done)
    node.still.passed += 2.0
    assert measurements.start([1], [], when_done) == ""
