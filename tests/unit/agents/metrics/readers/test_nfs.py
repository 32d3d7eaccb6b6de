"""The client of NFS: operations, and bytes by way of its mounts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.metrics.readers.nfs import NfsReader
from ccagent.errors import NotHereError, UnparsableError
from ccagent.machine.node import Node
from ccagent.machine.procfs.nfs import NFS3, NFS4, operations4, parse_nfs_mounts, parse_operations
from ccagent.records.envelopes import LARGEST_UINT

U32 = 0xFFFF_FFFF

# Composed by hand, in the form of nfs_show_stats(); of the operations most are left out.
MOUNTSTATS = """\
device proc mounted on /proc with fstype proc
device home:/export mounted on /home with fstype nfs4 statvers=1.1
	opts:	rw,vers=4.2,rsize=1048576,wsize=1048576,namlen=255,hard,proto=tcp,sec=sys
	age:	86034
	impl_id:	name='',domain='',date='0,0'
	caps:	caps=0x3ffbffff,wtmult=512,dtsize=1048576,bsize=0,namlen=255
	nfsv4:	bm0=0xfdffbfff,bm1=0xf9be3e,bm2=0x68800,acl=0x3,sessions,pnfs=not configured
	sec:	flavor=1,pseudoflavor=1
	events:	1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27
	bytes:	11 12 13 14 1500 1600 17 18
	RPC iostats version: 1.1  p/v: 100003/4 (nfs)
	xprt:	tcp 0 1 2 3 4 5 6 7 8 9 10
	per-op statistics
	NULL: 1 1 0 44 24 0 0 0 0
	READ: 193 193 0 26248 790024 12 40011 45123 0

device old:/my\\040data mounted on /mnt/my\\040data with fstype nfs statvers=1.1
	opts:	rw,vers=3,rsize=1048576,wsize=1048576
	age:	86034
	bytes:	1 2 3 4 500 600 7 8
	RPC iostats version: 1.1  p/v: 100003/3 (nfs)
	per-op statistics
	NULL: 0 0 0 0 0 0 0 0 0

no device mounted on /none with fstype rootfs
device nfsd mounted on /proc/fs/nfsd with fstype nfsd
device /dev/vda1 mounted on / with fstype ext4
"""


class Machine:
    """A tree with what the client of NFS tells."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.node = Node(root=str(root), hostname="n1", cluster="c1")
        self.mounts()

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def operations(self, **lines: list[int]) -> None:
        """Write lines `rpc`, `proc3`, `proc4`."""
        text = "net 9 9 9 9\n"
        for name, numbers in lines.items():
            number = "" if name == "rpc" else f"{len(numbers)} "
            text += f"{name} {number}{' '.join(map(str, numbers))}\n"
        self.write("proc/net/rpc/nfs", text)

    def mounts(self, *mounts: tuple[str, str, int, int, int]) -> None:
        """Write mount point, device, version, bytes read and written of each mount."""
        infos, statistics = "22 27 0:21 / /proc rw - proc proc rw\n", ""
        for point, device, version, read, written in mounts:
            kind = "nfs4" if version == 4 else "nfs"
            infos += f"31 27 {device} / {point} rw - {kind} server:{point} rw\n"
            statistics += (
                f"device server:{point} mounted on {point} with fstype {kind} statvers=1.1\n"
                f"\tbytes:\t0 0 0 0 {read} {written} 0 0\n"
                f"\tRPC iostats version: 1.1  p/v: 100003/{version} (nfs)\n\n"
            )
        self.write("proc/self/mountinfo", infos)
        self.write("proc/self/mountstats", statistics)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def values(reader: NfsReader, machine: Machine) -> dict[str, float]:
    return {each.metric: each.value for each in reader.read(machine.node)}


def moved(reader: NfsReader, machine: Machine) -> list[float | None]:
    found = values(reader, machine)
    return [found.get(f"nfs{key}") for key in ("3_read", "3_write", "4_read", "4_write")]


def test_operations_are_numbered() -> None:
    text = b"net 1 2 3 4\nrpc 5 6 7\nproc2 1 8\nproc3 3 9 10 11\nproc4 0\n"
    assert parse_operations(text) == {
        "net": [1, 2, 3, 4], "rpc": [5, 6, 7], "proc2": [8], "proc3": [9, 10, 11], "proc4": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        b"proc3",
        b"proc3 2 1",
        b"proc3 1 1 1",
        b"proc3 1 -1",
        b"rpc x",
        b"rpc 1 -1",
        b"rpc 18446744073709551616",
    ],
)
def test_what_are_no_operations(text: bytes) -> None:
    with pytest.raises(UnparsableError):
        parse_operations(text)


@given(
    st.binary()
    | st.lists(st.integers(-1, 1 << 65)).map(
        lambda numbers: f"proc4 {len(numbers)} {' '.join(map(str, numbers))}".encode()
    )
)
def test_operations_are_understood_or_unparsable(text: bytes) -> None:
    try:
        counters = parse_operations(text)
    except UnparsableError:
        return
    assert all(0 <= value <= LARGEST_UINT for numbers in counters.values() for value in numbers)


def test_version_3_has_22_operations() -> None:
    assert len(NFS3) == 22
    assert (NFS3[6], NFS3[7], NFS3[21]) == ("read", "write", "commit")


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        # Before Linux 3.13, and that.
        (53, {36: "secinfo", 37: "exchange_id", 52: "destroy_clientid"}),
        (54, {37: "fsid_present", 38: "exchange_id", 53: "destroy_clientid"}),
        # RHEL 7.
        (60, {37: "fsid_present", 56: "deallocate", 57: "layoutstats", 59: "copy"}),
        # Linux 5.10, 6.15, 6.16.
        (69, {57: "layoutstats", 60: "offload_cancel", 63: "copy_notify", 68: "read_plus"}),
        (70, {57: "layoutstats", 69: "offload_status"}),
        (71, {57: "zero_range", 58: "layoutstats", 69: "read_plus", 70: "offload_status"}),
    ],
)
def test_operations_of_version_4_are_those_of_the_kernel(
    number: int, expected: dict[int, str]
) -> None:
    names = operations4(number)
    assert len(names) == number
    assert {position: names[position] for position in expected} == expected


def test_of_an_order_that_is_not_known_only_the_beginning_has_names() -> None:
    assert operations4(64)[-1] == "copy"
    assert operations4(3) == ["null", "read", "write"]
    assert operations4(200) == list(NFS4)


def test_mounts_have_source_point_version_and_bytes() -> None:
    mounts, problems = parse_nfs_mounts(MOUNTSTATS.encode())
    assert not problems
    assert [(*mount[:3], *mount.moved[4:6]) for mount in mounts] == [
        ("home:/export", "/home", 4, 1500, 1600),
        ("old:/my data", "/mnt/my data", 3, 500, 600),
    ]


def test_the_type_tells_the_version_where_nothing_else_does() -> None:
    head = b"device s:/ mounted on /%d with fstype %s statvers=1.0\n"
    text = head + b"\tbytes:\t1 2 3 4 5 6 7 8\n\tevents:\n"
    mounts, _ = parse_nfs_mounts(text % (1, b"nfs4") + text % (2, b"nfs"))
    assert [mount.version for mount in mounts] == [4, 3]


@pytest.mark.parametrize("numbers", [b"", b"1 2 3 4 5", b"1 2 3 4 x 6", b"1 2 3 4 -5 6"])
def test_a_damaged_mount_costs_itself(numbers: bytes) -> None:
    text = b"device s:/ mounted on /m%d with fstype nfs statvers=1.1\n\tbytes:\t%s\n\tevents:\n"
    mounts, problems = parse_nfs_mounts(text % (1, numbers) + text % (2, b"1 2 3 4 5 6 7 8"))
    assert [mount.point for mount in mounts] == ["/m2"]
    assert len(problems) == 1


PIECES = st.sampled_from([
    b"device a:/b mounted on /c with fstype nfs4 statvers=1.1", b"\n", b"device ", b"\tbytes:",
    b" 1 2 3 4", b" 5 6", b" -7", b" 99999999999999999999", b"p/v: 100003/4", b"\xff",
])  # fmt: skip


@given(st.binary() | st.lists(PIECES).map(b"".join))
def test_mounts_have_bytes_in_range(text: bytes) -> None:
    mounts, _ = parse_nfs_mounts(text)
    assert all(0 <= value <= LARGEST_UINT for mount in mounts for value in mount.moved)


def test_metrics_of_the_node(machine: Machine) -> None:
    reader = NfsReader()
    machine.operations(rpc=[100, 1, 0], proc3=[7] * 22, proc4=[7] * 71)
    assert set(values(reader, machine).values()) == {0}
    machine.operations(rpc=[200, 4, 0], proc3=list(range(7, 29)), proc4=list(range(7, 78)))
    found = values(reader, machine)
    assert set(found) == set(reader.metrics)
    assert found["nfs_retrans"] == 3
    assert (found["nfs3_total"], found["nfs4_total"]) == (sum(range(22)), sum(range(71)))
    assert (found["nfs3_getattr"], found["nfs3_reads"], found["nfs3_commit"]) == (1, 6, 21)
    assert (found["nfs4_reads"], found["nfs4_writes"], found["nfs4_getattr"]) == (1, 2, 18)
    assert found["nfs4_zero_range"] == 57
    assert reader.errors == []


def test_operations_without_a_name_are_in_the_total(machine: Machine) -> None:
    reader = NfsReader()
    machine.operations(proc4=[0] * 64)
    values(reader, machine)
    machine.operations(proc4=[1] * 64)
    found = values(reader, machine)
    assert found["nfs4_total"] == 64
    assert "nfs4_lookupp" not in found
    assert "nfs3_total" not in found
    assert "nfs_retrans" not in found


def test_operations_are_counted_in_32_bits(machine: Machine) -> None:
    reader = NfsReader()
    machine.operations(proc3=[0, U32 - 9, 5, *[0] * 19])
    values(reader, machine)
    machine.operations(proc3=[0, 10, 8, *[0] * 19])
    found = values(reader, machine)
    assert (found["nfs3_getattr"], found["nfs3_setattr"], found["nfs3_total"]) == (20, 3, 23)


def test_operations_begin_anew_with_another_module(machine: Machine) -> None:
    reader = NfsReader()
    machine.operations(proc3=[1000] * 22, proc4=[1000] * 60)
    values(reader, machine)
    machine.operations(proc3=[10] * 22, proc4=[10] * 71)
    found = values(reader, machine)
    assert (found["nfs3_total"], found["nfs4_total"]) == (220, 0)
    machine.operations(proc3=[10] * 22, proc4=[11] * 71)
    assert values(reader, machine)["nfs4_total"] == 71


def test_volumes_are_summed_by_version(machine: Machine) -> None:
    machine.operations(rpc=[0, 0, 0])
    machine.mounts(("/a", "0:50", 4, 100, 0), ("/b", "0:51", 4, 0, 0), ("/c", "0:52", 3, 0, 0))
    reader = NfsReader()
    assert moved(reader, machine) == [0, 0, 0, 0]
    machine.mounts(("/a", "0:50", 4, 150, 1), ("/b", "0:51", 4, 7, 2), ("/c", "0:52", 3, 9, 8))
    assert moved(reader, machine) == [9, 8, 57, 3]


def test_mounts_of_one_file_system_count_once(machine: Machine) -> None:
    machine.operations(rpc=[0, 0, 0])
    reader = NfsReader()
    for read in (100, 150):
        machine.mounts(("/a", "0:50", 4, read, 0), ("/a/bound", "0:50", 4, read, 0))
        found = moved(reader, machine)
    assert found == [0, 0, 50, 0]


def test_mounts_over_each_other_are_told_apart(machine: Machine) -> None:
    machine.operations(rpc=[0, 0, 0])
    reader = NfsReader()
    for read in (100, 150):
        machine.mounts(("/a", "0:50", 4, read, 0), ("/a", "0:51", 4, 2 * read, 0))
        found = moved(reader, machine)
    assert found == [0, 0, 150, 0]


def test_a_mount_that_comes_or_goes_is_no_traffic(machine: Machine) -> None:
    machine.operations(rpc=[0, 0, 0])
    machine.mounts(("/a", "0:50", 4, 100, 100))
    reader = NfsReader()
    values(reader, machine)
    machine.mounts(("/a", "0:50", 4, 101, 100), ("/b", "0:51", 4, 5000, 5000))
    assert moved(reader, machine) == [0, 0, 1, 0]
    machine.mounts(("/b", "0:51", 4, 5001, 5000))
    assert moved(reader, machine) == [0, 0, 2, 0]


def test_each_file_costs_its_own_metrics(machine: Machine) -> None:
    reader = NfsReader()
    machine.write("proc/net/rpc/nfs", "proc3 x\n")
    assert moved(reader, machine) == [0, 0, 0, 0]
    assert reader.errors == ["/proc/net/rpc/nfs: not a number: b'proc3 x'"]
    machine.operations(rpc=[0, 0, 0])
    machine.mounts(("/a", "0:50", 4, -1, 0))
    assert moved(reader, machine) == [0, 0, 0, 0]
    assert reader.errors == ["/proc/self/mountstats: mount '/a': no line of bytes"]


def test_without_mountinfo_the_server_tells_file_systems_apart(machine: Machine) -> None:
    machine.operations(rpc=[0, 0, 0])
    reader = NfsReader()
    found: list[float | None] = []
    for read in (100, 150):
        machine.mounts(("/a", "0:50", 4, read, 0), ("/b", "0:51", 4, read, 0))
        (machine.root / "proc/self/mountinfo").unlink()
        found = moved(reader, machine)
    assert found == [0, 0, 100, 0]
    assert reader.errors == ["/proc/self/mountinfo: No such file or directory"]


def test_without_the_client_there_is_nothing(machine: Machine) -> None:
    with pytest.raises(NotHereError, match="/proc/net/rpc/nfs"):
        NfsReader().read(machine.node)


def test_mounts_of_this_machine_are_those_of_its_mount_table() -> None:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    mounted = [fields[1] for fields in map(str.split, lines) if fields[2] in {"nfs", "nfs4"}]
    mounts, _ = parse_nfs_mounts(Path("/proc/self/mountstats").read_bytes())
    assert sorted(mount.point for mount in mounts) == sorted(mounted)
