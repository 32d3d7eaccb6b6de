from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ccagent.errors import NotHereError
from tests.machines import compose
from tests.machines.anonymous import Anonymiser, split_stat
from tests.machines.hardware import cpu_list
from tests.machines.record import main, record
from tests.support.paths import MACHINES
from tests.support.recorded import RecordedNode, machine_names, process_ids

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = machine_names()
COMPOSED = [machine.name for machine in compose.composed()]
PROJECT = MACHINES.parent.parent
KERNEL_THREAD = 0x0020_0000


def files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_there_are_machines_of_each_sort() -> None:
    assert set(NAMES) >= {"plain-vm", "smt-slurm-v1", "v2-containers", "aarch64"}


@pytest.fixture(params=NAMES)
def node(request: pytest.FixtureRequest) -> RecordedNode:
    name: str = request.param
    return RecordedNode(name)


class TestEveryMachine:
    def test_says_where_it_comes_from(self, node: RecordedNode) -> None:
        assert not node.is_live
        assert node.machine.origin.startswith(("recorded with", "composed by hand"))
        assert node.machine.licence == "CC0-1.0"

    def test_is_small(self, node: RecordedNode) -> None:
        content = files(Path(node.root))
        assert len(process_ids(node)) <= 40
        assert len(content) < 400
        assert sum(map(len, content.values())) < 300_000

    def test_knows_an_owner_for_each_process(self, node: RecordedNode) -> None:
        assert {str(pid) for pid in process_ids(node)} == set(node.machine.owners)
        for pid in process_ids(node):
            status = node.read(f"proc/{pid}/status")
            (effective,) = re.findall(rb"^Uid:\t\d+\t(\d+)", status, re.MULTILINE)
            assert node.owner(f"proc/{pid}") == int(effective)

    def test_stat_has_the_52_fields_of_proc_5(self, node: RecordedNode) -> None:
        for pid in process_ids(node):
            before, comm, after = split_stat(node.read(f"proc/{pid}/stat"))
            fields = after.removeprefix(b") ").split()
            assert before == b"%d (" % pid
            # The kernel lets only its own threads have a longer name.
            assert 0 < len(comm) <= (63 if int(fields[6]) & KERNEL_THREAD else 15)
            assert after.endswith(b"\n")
            assert len(fields) == 50
            assert re.fullmatch(rb"[RSDZTtXI]", fields[0])
            assert all(re.fullmatch(rb"-?\d+", field) for field in fields[1:])

    def test_files_of_a_process_agree(self, node: RecordedNode) -> None:
        for pid in process_ids(node):
            _, comm, after = split_stat(node.read(f"proc/{pid}/stat"))
            stat = after.removeprefix(b") ").split()
            statm = list(map(int, node.read(f"proc/{pid}/statm").split()))
            status = dict(
                line.split(b":\t", 1) for line in node.read(f"proc/{pid}/status").splitlines()
            )
            assert len(statm) == 7
            # stat's vsize and rss are statm's size and resident, read a moment before.
            assert int(stat[20]) == statm[0] * node.page_size
            assert abs(int(stat[21]) - statm[1]) <= 64
            # A process may wake up between the two; it doesn't rise again.
            assert (status[b"State"][:1] == b"Z") == (stat[0] == b"Z")
            assert status[b"PPid"] == stat[1]
            assert status[b"Threads"] == stat[17]
            escaped = comm.replace(b"\\", b"\\\\").replace(b"\n", b"\\n")
            assert status[b"Name"] == escaped

    def test_nothing_ran_before_it_started_or_longer_than_it_could(
        self, node: RecordedNode
    ) -> None:
        now = node.clock.uptime() * node.clock_ticks
        cpus = node.read("proc/cpuinfo").count(b"processor\t:")
        for pid in process_ids(node):
            fields = split_stat(node.read(f"proc/{pid}/stat"))[2].split()
            used, started = int(fields[12]) + int(fields[13]), int(fields[20])
            assert started <= now
            assert used <= (now - started) * cpus

    def test_io_is_that_of_the_kernel_where_it_can_be_read(self, node: RecordedNode) -> None:
        for path in Path(node.root).glob("proc/*/io"):
            assert re.fullmatch(
                rb"rchar: \d+\nwchar: \d+\nsyscr: \d+\nsyscw: \d+\n"
                rb"read_bytes: \d+\nwrite_bytes: \d+\ncancelled_write_bytes: -?\d+\n",
                path.read_bytes(),
            )

    def test_cgroup_lines_have_three_parts(self, node: RecordedNode) -> None:
        for pid in process_ids(node):
            lines = node.read(f"proc/{pid}/cgroup").splitlines()
            assert lines
            assert all(re.fullmatch(rb"\d+:[^:]*:/.*", line) for line in lines)

    def test_boot_time_is_that_of_proc_stat(self, node: RecordedNode) -> None:
        (btime,) = re.findall(rb"^btime (\d+)$", node.read("proc/stat"), re.MULTILINE)
        assert abs(node.boot_time() - int(btime)) < 2

    def test_cpus_are_the_same_wherever_they_are_listed(self, node: RecordedNode) -> None:
        cpus = "sys/devices/system/cpu"
        times = re.findall(rb"^cpu(\d+) ", node.read("proc/stat"), re.MULTILINE)
        info = re.findall(rb"^processor\t: (\d+)$", node.read("proc/cpuinfo"), re.MULTILINE)
        topology = [name[3:] for name in node.list(cpus) if name[3:].isdecimal()]
        online = node.read(f"{cpus}/online").decode().strip()
        assert cpu_list(map(int, times)) == cpu_list(map(int, info)) == online
        assert cpu_list(map(int, topology)) == online

    def test_distances_are_square(self, node: RecordedNode) -> None:
        nodes = "sys/devices/system/node"
        names = [name for name in node.list(nodes) if name != "online"]
        rows = [node.read(f"{nodes}/node{n}/distance").split() for n in range(len(names))]
        assert rows
        assert all(len(row) == len(rows) for row in rows)
        assert all(row[n] == b"10" for n, row in enumerate(rows))


class TestRecordedNode:
    def test_a_process_that_is_not_there_has_no_owner(self) -> None:
        with pytest.raises(NotHereError):
            RecordedNode("plain-vm").owner("proc/999999999")

    def test_other_paths_are_owned_by_whom_they_are_owned(self) -> None:
        assert RecordedNode("plain-vm").owner("proc/stat") == os.stat(MACHINES).st_uid

    def test_users_are_those_of_the_recording(self) -> None:
        node = RecordedNode("smt-slurm-v1")
        assert node.user(5001) == "hopper"
        assert node.user(5099) == "_user_5099"

    def test_only_sleeping_and_waiting_let_time_pass(self) -> None:
        clock = RecordedNode("aarch64").clock
        before = (clock.time(), clock.monotonic(), clock.uptime())
        assert before == (clock.time(), clock.monotonic(), clock.uptime())
        clock.sleep(60)
        reader, writer = os.pipe()
        try:
            clock.wait(3540, reader)
            os.write(writer, b"!")
            clock.wait(1_000_000, reader)
        finally:
            os.close(reader)
            os.close(writer)
        after = (clock.time(), clock.monotonic(), clock.uptime())
        assert [b - a for a, b in zip(before, after, strict=True)] == [3600, 3600, 3600]


@pytest.fixture(scope="module")
def again(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("composed")
    compose.main([str(directory)])
    return directory


class TestComposing:
    @pytest.mark.slow
    @pytest.mark.parametrize("name", COMPOSED)
    def test_writes_what_is_committed(self, again: Path, name: str) -> None:
        kept = files(MACHINES / name)
        assert files(again / name) == {k: v for k, v in kept.items() if "expected/" not in str(k)}

    def test_writes_nothing_else(self, again: Path) -> None:
        assert sorted(path.name for path in again.iterdir()) == COMPOSED


class TestAnonymiser:
    @pytest.mark.parametrize(
        ("path", "expected"),
        [
            ("/", "/"),
            ("/user.slice/user-7001.slice/session-3.scope", "user-1001.slice/session-3.scope"),
            ("/slurm_n17/uid_7001/job_5/step_batch/task_0", "/slurm_test/uid_1001/job_5/"),
            ("/system.slice/n17_slurmstepd.scope/job_5/step_0/user/task_0", "/test_slurmstepd.sc"),
            ("/system.slice/sshd.service", "/system.slice/sshd.service"),
            ("/system.slice/sshd@4-10.0.0.1:22-10.0.0.2:5.service", "/system.slice/sshd.service"),
            ("/system.slice/secret.service", "/system.slice/group1.service"),
            ("/user.slice/user-0.slice/secret.scope (deleted)", "/group1.scope (deleted)"),
            ("/system.slice/docker-" + "ab" * 32 + ".scope", "/system.slice/docker-"),
            ("/kubepods.slice/kubepods-pod12345678_1234_1234_1234_1234567890ab.slice", "-pod"),
        ],
    )
    def test_of_a_cgroup_keeps_what_says_nothing_of_the_site(
        self, path: str, expected: str
    ) -> None:
        anonymiser = Anonymiser("test", lambda _: "somebody")
        replaced = anonymiser.cgroup(f"0::{path}\n".encode()).decode()
        assert expected in replaced
        for secret in ("7001", "n17", "10.0.0", "secret", "abab", "12345678"):
            assert secret not in replaced
        assert len(replaced.split("/")) == len(path.split("/"))

    def test_ids_of_containers_stay_ids_and_equal_ones_equal(self) -> None:
        anonymiser = Anonymiser("test", lambda _: "")
        once = anonymiser.group(f"libpod-{'ab' * 32}.scope")
        assert re.fullmatch(r"libpod-[0-9a-f]{64}\.scope", once)
        monitor = anonymiser.group(f"libpod-conmon-{'ab' * 32}.scope")
        assert monitor == once.replace("libpod-", "libpod-conmon-")

    @pytest.mark.parametrize(
        ("comm", "is_kernel", "expected"),
        [
            (b"slurmstepd", False, b"slurmstepd"),
            (b"kworker/0:1H-kblockd", True, b"kworker/0:1H-kblockd"),
            (b"10.1.2.3-manage", True, b"cmd1"),
            (b"[fe80::1]-manag", True, b"cmd1"),
            (b"slurmstepd2", False, b"cmd1"),
            (b"\xff\n", False, b"cmd1"),
        ],
    )
    def test_of_commands_keeps_those_of_every_cluster(
        self, comm: bytes, is_kernel: bool, expected: bytes
    ) -> None:
        anonymiser = Anonymiser("test", lambda _: "")
        assert anonymiser.command(comm, is_kernel=is_kernel) == expected

    @pytest.mark.parametrize(
        ("release", "expected"),
        [
            (b"Linux version 4.18.0-553.el8_10.x86_64 (a@b)", b"4.18.0-553.el8_10.x86_64"),
            (b"Linux version 6.8.0-60-generic (a@b)", b"6.8.0-60"),
            (b"Linux version 6.12.1-oursite-7 (a@b)", b"6.12.1"),
        ],
    )
    def test_of_a_release_keeps_the_version(self, release: bytes, expected: bytes) -> None:
        assert Anonymiser("test", lambda _: "").release(release) == expected

    def test_serial_numbers_are_taken_out(self) -> None:
        anonymiser = Anonymiser("test", lambda _: "")
        arm = b"CPU revision\t: 1\n\nSerial\t\t: 10000000deadbeef\nModel\t\t: Board\n"
        assert anonymiser.cpuinfo(arm) == arm.replace(b"10000000deadbeef", b"0")
        s390 = b"processor 0: version = FF,  identification = 0133E8,  machine = 2964\n"
        assert anonymiser.cpuinfo(s390) == s390.replace(b"0133E8", b"0")


@pytest.fixture(scope="module", params=COMPOSED)
def recorded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[RecordedNode, RecordedNode]:
    directory = tmp_path_factory.mktemp("recorded")
    name: str = request.param
    record(RecordedNode(name), directory / "copy", origin="a test")
    return RecordedNode(name), RecordedNode("copy", directory)


class TestRecordingARecording:
    """Recording a machine whose secrets are known."""

    def test_keeps_every_process(self, recorded: tuple[RecordedNode, RecordedNode]) -> None:
        original, copy = recorded
        assert process_ids(copy) == process_ids(original)

    def test_keeps_the_figures(self, recorded: tuple[RecordedNode, RecordedNode]) -> None:
        original, copy = recorded
        for pid in process_ids(original):
            path = f"proc/{pid}/stat"
            assert split_stat(copy.read(path))[2] == split_stat(original.read(path))[2]
            assert copy.read(f"proc/{pid}/statm") == original.read(f"proc/{pid}/statm")
        assert copy.read("proc/stat") == original.read("proc/stat")
        assert copy.boot_time() == original.boot_time()

    def test_names_nobody(self, recorded: tuple[RecordedNode, RecordedNode]) -> None:
        original, copy = recorded
        people = {
            name
            for uid, name in original.machine.users.items()
            if int(uid) >= 1000 and name != "slurm"
        }
        everything = b"\n".join(files(Path(copy.root)).values())
        assert people
        for secret in (*people, original.hostname, original.cluster):
            assert secret.encode() not in everything
        numbers = {int(uid) for uid in re.findall(rb"(?:uid_|user[-@])(\d+)", everything)}
        assert numbers
        assert numbers <= set(range(1001, 1010))

    def test_chooses_some_of_each_kind_with_their_ancestors(self, tmp_path: Path) -> None:
        record(RecordedNode("smt-slurm-v1"), tmp_path / "few", number=12, origin="a test")
        few = RecordedNode("few", tmp_path)
        assert len(process_ids(few)) == 12
        states = {split_stat(few.read(f"proc/{p}/stat"))[2].split()[1] for p in process_ids(few)}
        owners = {few.owner(f"proc/{pid}") for pid in process_ids(few)}
        assert b"Z" in states
        assert len(owners) > 2


WORD = "zqx-payroll-x"
"""A command like no other word."""


@pytest.fixture(scope="module")
def secretive() -> Iterator[int]:
    """A process, of another user if there may be one, with the word wherever it can have it."""
    program = 'printf %s "$1" > /proc/$$/comm; echo ready; read answer'
    with subprocess.Popen(
        ["/bin/sh", "-c", program, "sh", WORD],
        env={"WORD": WORD},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd="/",
        user=54_321 if os.geteuid() == 0 else None,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.communicate(b"\n")


@pytest.fixture(scope="module")
def here(secretive: int, tmp_path_factory: pytest.TempPathFactory) -> RecordedNode:
    """A recording of this machine, made by the command while that process runs."""
    directory = tmp_path_factory.mktemp("live")
    subprocess.run(
        [sys.executable, "-m", "tests.machines.record", "here", "--into", str(directory)],
        check=True,
        cwd=PROJECT,
    )
    return RecordedNode("here", directory)


class TestRecordingThisMachine:
    def test_keeps_the_process_but_not_its_command(
        self, here: RecordedNode, secretive: int
    ) -> None:
        live = split_stat(Path(f"/proc/{secretive}/stat").read_bytes())[1]
        assert live == WORD.encode()
        comm = split_stat(here.read(f"proc/{secretive}/stat"))[1]
        assert re.fullmatch(rb"cmd\d+", comm)
        assert here.read(f"proc/{secretive}/status").startswith(b"Name:\t" + comm + b"\n")

    def test_has_the_word_nowhere(self, here: RecordedNode) -> None:
        content = files(Path(here.root))
        assert not any(WORD in path for path in content)
        assert not any(WORD.encode() in text for text in content.values())

    def test_has_no_arguments_and_no_environments(self, here: RecordedNode) -> None:
        names = {path.name for path in Path(here.root).glob("proc/[0-9]*/*")}
        assert names == {"stat", "statm", "status", "cgroup", "io"}

    def test_names_users_by_number(self, here: RecordedNode, secretive: int) -> None:
        owner = here.owner(f"proc/{secretive}")
        # Nobody is known by that number everywhere.
        assert owner in range(1001, 2000) or owner == os.geteuid() == 65534
        assert here.user(owner) in {f"user{owner - 1000}", f"_user_{owner}"}

    def test_leaves_out_who_records(self, here: RecordedNode) -> None:
        assert os.getpid() not in process_ids(here)

    def test_is_this_machine(self, here: RecordedNode) -> None:
        assert here.hostname == "here"
        assert here.page_size == os.sysconf("SC_PAGE_SIZE")
        assert here.read("proc/sys/kernel/pid_max") == Path("/proc/sys/kernel/pid_max").read_bytes()
        (total,) = re.findall(rb"MemTotal: +\d+ kB", here.read("proc/meminfo"))
        assert total in Path("/proc/meminfo").read_bytes()

    def test_does_not_replace_another(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "here").mkdir()
        with pytest.raises(SystemExit) as stopped:
            main(["here", "--into", str(tmp_path)])
        assert stopped.value.code == 2
        assert "exists" in capsys.readouterr().err
        assert files(tmp_path) == {}
