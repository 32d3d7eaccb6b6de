"""Virtual machines are found by what libvirt and QEMU leave, and not by what users claim."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from ccagent.errors import NotHereError
from ccagent.machine.cgroup.counters import JobCgroups
from ccagent.machine.cgroup.jobs import find_membership, job_directories, parse_machine_job
from ccagent.machine.virtual_machines import MachineFinder, parse_guest_name
from tests.support.tree import TreeNode

if TYPE_CHECKING:
    from pathlib import Path

SCOPE = "machine.slice/machine-qemu\\x2d3\\x2dvm\\x2done.scope"
STATE = """<domstatus state='running' pid='100'>
  <domain type='qemu' id='3'><name>vm-one</name>
    <title>&lt;metadata&gt;&lt;a:machine job='9'/&gt;</title>
    <metadata>
      <cc:machine xmlns:cc="urn:ccagent:machine" job="4711"/>
    </metadata>
  </domain></domstatus>
"""


@pytest.fixture
def node(tmp_path: Path) -> TreeNode:
    return TreeNode(tmp_path)


def _file(node: TreeNode, name: str, content: str) -> None:
    path = node.path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def _qemu(node: TreeNode, process: int, name: str, start: int = 500) -> None:
    node.process(process, start=start)
    node.write(f"{process}/comm", "qemu-system-x86\n")
    node.write(f"{process}/cmdline", f"qemu\0-name\0guest={name},debug-threads=on\0")


def _found(node: TreeNode, finder: MachineFinder | None = None) -> list[tuple[str, int]]:
    return [each[:2] for each in (finder or MachineFinder()).find(node)]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["qemu", "-name", "guest=vm-1,debug-threads=on"], "vm-1"),
        (["qemu", "-name", "debug-threads=on,guest=a,,b"], "a,b"),
        (["kvm", "-S", "-name", "plain"], "plain"),
        (["qemu", "-name"], ""),
        (["sh", "guest=vm-1"], ""),
        (["qemu", "-name", "guest=a\nb"], ""),
        (["qemu", "-name", "guest=" + "x" * 300], ""),
    ],
)
def test_the_name_of_a_machine_is_an_option_of_qemu(words: list[str], name: str) -> None:
    assert parse_guest_name("\0".join(words).encode() + b"\0") == name


def test_a_user_who_claims_a_name_does_not_take_it(node: TreeNode) -> None:
    _qemu(node, 100, "vm-1", start=900)
    _qemu(node, 50, "vm-1", start=100)
    assert _found(node) == [("vm-1", 50)]
    _file(node, "run/libvirt/qemu/vm-1.pid", "100\n")
    assert _found(node) == [("vm-1", 100)]


def test_a_pid_file_that_a_crash_left_is_not_believed(node: TreeNode) -> None:
    _file(node, "run/libvirt/qemu/vm-1.pid", "100\n")
    node.process(100)
    node.write("100/cmdline", "sleep\0")
    assert _found(node) == []


def test_a_machine_in_a_scope_is_found_whatever_its_command(node: TreeNode) -> None:
    _qemu(node, 100, "vm-one")
    node.write("100/comm", "renamed\n")
    _file(node, f"sys/fs/cgroup/{SCOPE}/libvirt/emulator/cgroup.procs", "100\n")
    assert _found(node) == [("vm-one", 100)]


def test_processes_are_looked_through_every_two_seconds(node: TreeNode) -> None:
    finder = MachineFinder()
    assert _found(node, finder) == []
    _qemu(node, 100, "vm-1")
    assert _found(node, finder) == []
    finder.look()
    assert _found(node, finder) == [("vm-1", 100)]
    _qemu(node, 101, "vm-2")
    node.still.passed += 2
    assert _found(node, finder) == [("vm-1", 100), ("vm-2", 101)]
    node.end(100)
    assert _found(node, finder) == [("vm-2", 101)]


def test_the_job_of_a_machine_is_in_its_metadata(node: TreeNode) -> None:
    _file(node, "run/libvirt/qemu/vm-one.xml", STATE)
    _file(node, f"sys/fs/cgroup/{SCOPE}/cgroup.procs", "")
    assert find_membership(node, f"0::/{SCOPE}/libvirt/emulator\n".encode()).job == 4711
    assert find_membership(node, f"0::/user.slice/{SCOPE}/x\n".encode()).job == 0
    assert find_membership(node, b"0::/machine.slice/other.scope\n").job == 0


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("vm_one", "vmone"),
        (".vm..on\N{LATIN SMALL LETTER E WITH ACUTE}", "vm.on"),
        ("x" * 70, "x" * 57),
    ],
)
def test_the_state_is_found_by_its_number(node: TreeNode, name: str, short: str) -> None:
    _file(node, f"run/libvirt/qemu/{name}.xml", STATE)
    other = STATE.replace("id='3'", "id='4'").replace("4711", "12")
    _file(node, f"run/libvirt/qemu/{short}.xml", other)
    _file(
        node, f"sys/fs/cgroup/machine.slice/machine-qemu\\x2d3\\x2d{short}.scope/cgroup.procs", ""
    )
    for number, job in ((3, 4711), (4, 12), (5, 0)):
        scope = f"machine.slice/machine-qemu\\x2d{number}\\x2d{short}.scope"
        assert find_membership(node, f"0::/{scope}\n".encode()).job == job


def _usage(node: TreeNode, group: str, seconds: int, memory: int) -> None:
    _file(node, f"sys/fs/cgroup/{group}/cpu.stat", f"usage_usec {seconds}000000\n")
    _file(node, f"sys/fs/cgroup/{group}/memory.current", f"{memory}\n")


def test_a_machine_counts_for_its_job_as_the_steps_of_the_job_do(node: TreeNode) -> None:
    _usage(node, SCOPE, 30, 2000)
    with pytest.raises(NotHereError):
        JobCgroups().read(node)
    _file(node, "run/libvirt/qemu/vm-one.xml", STATE)
    found = JobCgroups().read(node)
    assert [*found] == [4711]
    _usage(node, "system.slice/slurmstepd.scope/job_4711", 5, 100)
    counters = JobCgroups().read(node)[4711]
    assert (counters.cpu_time, counters.mem_used) == (35_000_000_000, 2100)


def test_the_job_of_a_machine_is_forgotten_with_its_scope(node: TreeNode) -> None:
    _file(node, "run/libvirt/qemu/vm-one.xml", STATE)
    _usage(node, SCOPE, 30, 2000)
    assert [each.machine for each in job_directories(node, ())] == ["vm-one"]
    (node.path / "run/libvirt/qemu/vm-one.xml").write_text(STATE.replace("4711", "12"))
    assert [each.job for each in job_directories(node, ())] == [4711]
    shutil.rmtree(node.path / "sys/fs/cgroup" / SCOPE)
    with pytest.raises(NotHereError):
        job_directories(node, ())
    _usage(node, SCOPE, 30, 2000)
    assert [each.job for each in job_directories(node, ())] == [12]


@pytest.mark.parametrize(
    "state",
    [
        "",
        "<metadata></metadata>",
        STATE.replace("urn:ccagent:machine", "urn:other"),
        STATE.replace("4711", "-1"),
        "<metadata>&lt;cc:machine job='1'/&gt;</metadata>",
        STATE.replace("</metadata>", "").replace("<metadata>", ""),
    ],
)
def test_metadata_of_others_have_no_job(state: str) -> None:
    assert parse_machine_job(state.encode()) == 0
