"""The machine's door: names, users, and files that are absent, forbidden or too large."""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import re
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.errors import (
    CcagentError,
    ConfigurationError,
    NotHereError,
    NotPermittedError,
    UnparsableError,
    VanishedError,
    raise_for,
)
from ccagent.machine.clock import Clock
from ccagent.machine.node import HOSTNAME, Node, domain_from_hosts
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Generator


class Moved(Clock):
    """Clocks that stand where the test puts them."""

    now = 0.0

    def time(self) -> float:
        return 1_700_000_000.0 + self.now

    def monotonic(self) -> float:
        return self.now

    def uptime(self) -> float:
        return 600.0 + self.now


class Asked(Node):
    """A node that counts how often it asks the name service, which knows `eve` and `fox`."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(hostname="c1-1", cluster="fox", clock=clock)
        self.asked: list[int] = []
        self.known = {70_000: "eve", 71_000: "fox"}

    def _look_up_user(self, uid: int) -> str:
        self.asked.append(uid)
        return self.known.get(uid, "")


def recorded(root: Path, **files: bytes) -> Node:
    """A node below `root`; the names of files have `_` for `/`."""
    for name, content in files.items():
        path = root / name.replace("_", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return Node(root=str(root), hostname="c1-1", cluster="fox")


@contextlib.contextmanager
def unprivileged() -> Generator[None]:
    """Root may read everything, so be somebody else."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_live_node_has_the_kernels_name() -> None:
    node = Node(cluster="fox")
    assert node.is_live
    assert node.hostname == os.uname().nodename.partition(".")[0]
    assert node.read("proc/sys/kernel/hostname").decode().strip() == node.hostname
    assert node.clock_ticks == 100
    assert node.page_size in {4096, 16384, 65536}


@pytest.mark.parametrize("root", ["{}", "{}/"])
def test_a_recording_is_read_below_its_root(tmp_path: Path, root: str) -> None:
    recorded(tmp_path, proc_stat=b"recorded", proc_1_comm=b"init")
    node = Node(root=root.format(tmp_path), hostname="c1-1", cluster="fox")
    assert not node.is_live
    assert node.read("proc/stat") == b"recorded"
    assert sorted(node.list("proc")) == ["1", "stat"]
    assert node.owner("proc/1") == os.geteuid()
    descriptor = node.open("proc/1/comm")
    assert os.read(descriptor, 10) == b"init"
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)


@pytest.mark.parametrize("name", ["c1-1", "c1-1.fox.example.org", "A_1", "x", "1", "a" * 253])
def test_names_of_hosts_and_clusters(name: str) -> None:
    node = Node(hostname=name, cluster=name)
    assert (node.hostname, node.cluster) == (name, name)


@pytest.mark.parametrize(
    "name", ["-c1", "c1-", ".", "c1.", "c 1", "c1\n", "../x", "a/b", "größe", "a" * 254, "c1;x"]
)
@pytest.mark.parametrize("what", ["hostname", "cluster"])
def test_other_names_are_refused(name: str, what: str) -> None:
    names = {"hostname": "c1-1", "cluster": "fox"} | {what: name}
    with pytest.raises(ConfigurationError, match=re.escape(repr(name))):
        Node(hostname=names["hostname"], cluster=names["cluster"])


@pytest.mark.parametrize(
    ("hostname", "hosts", "cluster"),
    [
        ("c1-1.fox.example.org", b"", "fox.example.org"),
        ("c1-1", b"10.0.0.1 c1-1.fox c1-1\n", "fox"),
        ("c1-1", b"10.0.0.1 c1-1\n", "local"),
        ("c1-1", None, "local"),
        ("c1-1", b"10.0.0.1 c1-1.\xff\xfe\n", "local"),
    ],
)
def test_the_cluster_is_the_domain_or_local(
    tmp_path: Path, hostname: str, hosts: bytes | None, cluster: str
) -> None:
    if hosts is not None:
        (tmp_path / "etc").mkdir()
        (tmp_path / "etc/hosts").write_bytes(hosts)
    assert Node(root=str(tmp_path), hostname=hostname).cluster == cluster


@pytest.mark.parametrize(
    ("own", "given", "hostname_only", "name"),
    [
        ("c1-1.fox.example", "", True, "c1-1"),
        ("c1-1.fox.example", "", False, "c1-1.fox.example"),
        ("c1-1", "", True, "c1-1"),
        ("localhost", "c1-1.fox.example", True, "c1-1.fox.example"),
    ],
)
def test_the_domain_is_cut_from_the_host_name(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    own: str,
    given: str,
    hostname_only: bool,
    name: str,
) -> None:
    monkeypatch.setattr("ccagent.machine.node.read_host_name", lambda: own)
    node = Node(root=str(tmp_path), hostname=given, hostname_only=hostname_only)
    assert node.hostname == name
    assert node.cluster == ("local" if own == "c1-1" else "fox.example")


@pytest.mark.parametrize(
    ("hosts", "domain"),
    [
        ("", ""),
        ("127.0.0.1 localhost\n10.0.0.1\tc1-1.fox.org\tc1-1\n", "fox.org"),
        ("10.0.0.1 c1-1 c1-1.fox.org\n", "fox.org"),
        ("10.0.0.1 c1-10.fox.org\n", ""),
        ("# 10.0.0.1 c1-1.fox.org\n", ""),
        ("10.0.0.1 c1-1 # c1-1.fox.org\n", ""),
        ("c1-1.fox.org c1-1\n", ""),
        ("10.0.0.1 c1-1.\n10.0.0.1 c1-1.b-\n10.0.0.1 c1-1.ok\n", "ok"),
    ],
)
def test_the_domain_in_the_list_of_hosts(hosts: str, domain: str) -> None:
    assert domain_from_hosts(hosts, "c1-1") == domain


@given(st.text())
def test_any_list_of_hosts_gives_a_domain_or_none(hosts: str) -> None:
    domain = domain_from_hosts(hosts, "c1-1")
    assert not domain or HOSTNAME.fullmatch(f"c1-1.{domain}")


def test_users_are_asked_for_once_an_hour() -> None:
    clock = Moved()
    node = Asked(clock)
    assert [node.user(uid) for uid in (70_000, 71_000) * 2] == ["eve", "fox"] * 2
    assert node.asked == [70_000, 71_000]
    clock.now = 3599
    node.known[71_000] = "renamed"
    assert node.user(71_000) == "fox"
    clock.now = 3600
    assert node.user(71_000) == "renamed"
    assert node.asked == [70_000, 71_000, 71_000]


def test_unknown_users_are_asked_for_every_five_minutes() -> None:
    clock = Moved()
    node = Asked(clock)
    assert [node.user(4711), node.user(4711)] == ["_user_4711"] * 2
    clock.now = 299
    assert node.user(4711) == "_user_4711"
    assert node.asked == [4711]
    clock.now = 300
    node.known[4711] = "new"
    assert node.user(4711) == "new"
    assert node.asked == [4711, 4711]


@pytest.mark.slow
def test_the_users_remembered_are_bounded() -> None:
    node = Asked(Moved())
    for uid in range(25_000):
        node.user(uid)
    assert len(node._users._known) <= 10_000


def test_users_of_this_machine() -> None:
    node = Node(cluster="fox")
    assert node.user(0) == pwd.getpwuid(0).pw_name
    assert node.user(4_000_000_000) == "_user_4000000000"
    assert node.user(2**40) == f"_user_{2**40}"


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 16384, 16385, 500_000])
def test_a_file_is_read_whole(tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    assert recorded(tmp_path, file=content).read("file") == content


def test_a_file_of_the_kernel_is_read_whole() -> None:
    # The kernel gives such a file in pieces of less than a page, each ending with a line.
    node = Node(cluster="fox")
    pid = os.getpid()
    assert b"[stack]" in node.read(f"proc/{pid}/maps")
    smaps = node.read(f"proc/{pid}/smaps")
    assert b"[stack]" in smaps
    assert len(smaps) > 16384


@pytest.mark.parametrize(("size", "limit"), [(500_000, 100_000), (10_000, 5000), (200, 100)])
def test_a_file_above_the_limit_is_refused(tmp_path: Path, size: int, limit: int) -> None:
    node = recorded(tmp_path, file=bytes(size))
    with pytest.raises(UnparsableError, match=f"^/file: larger than {limit} bytes"):
        node.read("file", limit=limit)
    assert len(node.read("file", limit=size)) == size


def test_an_endless_file_is_refused() -> None:
    with pytest.raises(UnparsableError, match="^/dev/zero: larger than"):
        Node(cluster="fox").read("dev/zero")


def test_what_is_not_there_is_not_here(tmp_path: Path) -> None:
    node = recorded(tmp_path, proc_stat=b"")
    for action in (node.read, node.list, node.owner, node.open):
        for path in ("proc/absent", "proc/stat/absent"):
            with pytest.raises(NotHereError, match=f"^/{path}: (No such file|Not a directory)"):
                action(path)
    with pytest.raises(NotHereError):
        node.list("proc/stat")


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UnparsableError, match="^/proc: Is a directory"):
        recorded(tmp_path, proc_stat=b"").read("proc")


def test_a_pipe_that_nobody_writes_to_is_empty(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    read: list[bytes] = []
    node = recorded(tmp_path)
    threading.Thread(target=lambda: read.append(node.read("pipe")), daemon=True).start()
    until(lambda: read == [b""])


def test_a_path_that_no_kernel_has_is_unparsable(tmp_path: Path) -> None:
    # Damaged tables name interfaces and disks like this.
    node = recorded(tmp_path)
    for action in (node.read, node.list, node.directories, node.owner, node.inode, node.space):
        for path in ("sys/eth\0", "sys/\ud800"):
            with pytest.raises(UnparsableError, match=f"^/{re.escape(repr(path))}: "):
                action(path)


def test_what_is_forbidden_is_not_permitted() -> None:
    # Not below tmp_path, which nobody but its owner may enter.
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o711)
        node = recorded(Path(directory), closed_file=b"x", file=b"x")
        (Path(directory) / "closed").chmod(0)
        (Path(directory) / "file").chmod(0)
        with unprivileged():
            for action in (node.read, node.open, node.owner):
                with pytest.raises(NotPermittedError, match="^/closed/file: Permission denied"):
                    action("closed/file")
            for action in (node.read, node.open):
                with pytest.raises(NotPermittedError, match="^/file: Permission denied"):
                    action("file")
            with pytest.raises(NotPermittedError, match="^/closed: Permission denied"):
                node.list("closed")
        (Path(directory) / "closed").chmod(0o700)


def test_a_process_that_ended_has_vanished() -> None:
    pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
    node = Node(cluster="fox")
    descriptor = node.open(f"proc/{pid}/stat")
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    with pytest.raises(OSError, match="No such process") as caught:
        os.read(descriptor, 100)
    os.close(descriptor)
    with pytest.raises(VanishedError, match=f"^/proc/{pid}/stat: No such process"):
        raise_for(f"proc/{pid}/stat", caught.value)
    with pytest.raises(NotHereError):
        node.read(f"proc/{pid}/stat")


@pytest.mark.parametrize("number", sorted(errno.errorcode))
def test_each_answer_of_the_kernel_has_its_error(number: int) -> None:
    with pytest.raises(CcagentError) as caught:
        raise_for("sys/x", OSError(number, "text"))
    assert str(caught.value) == f"/sys/x: {os.strerror(number)}"
    assert isinstance(
        caught.value, (NotHereError, VanishedError, NotPermittedError, UnparsableError)
    )


def test_the_boot_was_the_uptime_ago() -> None:
    clock = Moved()
    node = Node(hostname="c1-1", cluster="fox", clock=clock)
    assert node.boot_time() == 1_699_999_400
    clock.now = 1000
    assert node.boot_time() == 1_699_999_400
    live = Node(cluster="fox")
    (btime,) = re.findall(rb"^btime (\d+)$", live.read("proc/stat"), re.MULTILINE)
    assert abs(live.boot_time() - int(btime)) < 3
