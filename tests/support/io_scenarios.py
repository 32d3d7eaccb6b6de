"""Programs whose I/O is known, each in the control group of a job: what they did, what was counted.

Runs in a virtual machine with a kernel of Debian (tests/support/debian_machine.py), as root:

    python -m tests.support.io_scenarios BUILT > results.json

BUILT: directory of programs that keep ended jobs for four seconds.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
import traceback
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccagent.machine.bpf import loading, pins
from ccagent.machine.bpf.io_hooks import HOOKS, missing_hooks
from ccagent.machine.bpf.io_loading import IoOptions
from ccagent.machine.bpf.io_records import (
    IoReading,
    NetworkReading,
    count_lost,
    parse_io,
    parse_network,
)
from ccagent.machine.bpf.objects import objects
from ccagent.machine.bpf.status import read_status
from tests.support.effort import IS_NIGHTLY
from tests.support.kernel_programs import NOBODY, JobGroup, hierarchy

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import CodeType

Result = dict[str, Any]

DIRECTORY = "/run/ccagent-test-kernel"
_OF_SMALL_KERNEL = {"vfs_write", "vfs_writev", "security_file_open", "security_inode_create"}
_LACKING = frozenset(hook.function for hook in HOOKS) - _OF_SMALL_KERNEL
_READINGS = 1000 if IS_NIGHTLY else 100
_numbers = itertools.count(1000)

PRELUDE = """
import ctypes, mmap, os, socket, subprocess, sys, threading
def path(name):
    return os.path.join(place, name)
def elsewhere(function, *arguments):
    # Sockets stay in the network namespace of the thread that made them.
    made = []
    def make():
        namespace = os.open("/run/netns/other", os.O_RDONLY)
        assert not ctypes.CDLL(None).setns(namespace, 0x40000000)
        made.append(function(*arguments))
    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    return made[0]
"""


def run_in_job(
    root: str, place: str, script: str, *, version: str = "v2", job: int = 0
) -> tuple[int, Result]:
    """Run Python code in a job that ends with it; return the job and what it says that it did.

    The code finds `place`, and tells what is to be counted with `expect`.
    """
    number = job or next(_numbers)
    path = (
        f"system.slice/slurmstepd.scope/job_{number}/step_0/user/task_0"
        if version == "v2"
        else f"slurm/uid_5001/job_{number}/step_0"
    )
    group = JobGroup(root, path, "cgroup.procs")
    code = compile(PRELUDE + textwrap.dedent(script), f"job {number}", "exec")
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os._exit(_work(code, place, f"{group.path}/cgroup.procs", writer))
    os.close(writer)
    with open(reader, "rb") as told:
        said = told.read()
    _, status = os.waitpid(child, 0)
    group.remove()
    if status:
        raise RuntimeError(said.decode())
    return number, json.loads(said)


def _work(code: CodeType, place: str, procs: str, writer: int) -> int:
    expected: Result = {}

    def expect(**values: int) -> None:
        for name, value in values.items():
            expected[name] = expected.get(name, 0) + value

    try:
        Path(procs).write_text("0")
        exec(code, {"place": place, "expect": expect})
        os.write(writer, json.dumps(expected).encode())
    except BaseException:  # noqa: BLE001 - the parent raises it
        os.write(writer, traceback.format_exc().encode())
        return 1
    return 0


def read_io() -> IoReading:
    return parse_io(Path(DIRECTORY, pins.IO).read_bytes())


def read_network() -> NetworkReading:
    return parse_network(Path(DIRECTORY, pins.NETWORK).read_bytes())


def counted(job: int, place: str) -> Result:
    """Return what the kernel's programs counted for a job on the file system of a path."""
    device = os.stat(place).st_dev
    number = os.major(device) << 20 | os.minor(device)
    for key, counts in read_io().entries.items():
        if (key.job, key.device) == (job, number):
            return {name: value for name, value in counts._asdict().items() if value}
    return {}


SCRIPTS = {
    "read_write": """
        data = os.urandom(1_000_003)
        fd = os.open(path("a"), os.O_RDWR | os.O_CREAT)
        expect(opens=1, creates=1)
        for size in (1, 4095, 4096, 70_001, 1_000_003):
            os.lseek(fd, 0, 0)
            expect(writes=1, write_bytes=os.write(fd, data[:size]))
        os.lseek(fd, 0, 0)
        while piece := os.read(fd, 4096):
            expect(reads=1, read_bytes=len(piece))
        expect(reads=1)  # the end of the file
        expect(reads=1, read_bytes=len(os.pread(fd, 100, 7)))
        expect(writes=1, write_bytes=os.pwrite(fd, b"x" * 33, 5))
        for _ in range(3):
            os.fsync(fd)
            expect(fsyncs=1)
        for _ in range(5):
            os.fdatasync(fd)
            expect(fsyncs=1)
    """,
    "vectors": """
        fd = os.open(path("v"), os.O_RDWR | os.O_CREAT)
        expect(opens=1, creates=1)
        expect(writes=1, write_bytes=os.writev(fd, [b"a" * 1000, b"b" * 24_001]))
        expect(writes=1, write_bytes=os.pwritev(fd, [b"c" * 500, b"d" * 501], 3))
        expect(writes=1, write_bytes=os.pwritev(fd, [b"e" * 7, b"f" * 6], 9, os.RWF_DSYNC))
        os.lseek(fd, 0, 0)
        buffers = [bytearray(10_000), bytearray(20_000)]
        expect(reads=1, read_bytes=os.readv(fd, buffers))
        expect(reads=1, read_bytes=os.preadv(fd, buffers, 10))
        expect(reads=1, read_bytes=os.preadv(fd, buffers, 100, os.RWF_HIPRI))
    """,
    "metadata": """
        for n in range(50):
            fd = os.open(path(f"f{n}"), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            os.close(fd)
        expect(opens=50, creates=50)
        for n in range(500):
            os.stat(path(f"f{n % 50}"))
        expect(stats=500)
        os.mkdir(path("d"))
        expect(mkdirs=1)
        os.rename(path("f0"), path("d/f0"))
        os.link(path("f1"), path("l1"))
        os.symlink("f1", path("s1"))
        expect(renames=1, links=2)
        os.unlink(path("d/f0"))
        os.unlink(path("s1"))
        os.rmdir(path("d"))
        expect(unlinks=2, rmdirs=1)
        os.statvfs(place)
        expect(statfs=1)
    """,
    "listing": """
        fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        expect(opens=1)
        libc = ctypes.CDLL(None, use_errno=True)
        buffer = ctypes.create_string_buffer(32768)
        while True:
            expect(readdirs=1)
            if libc.syscall(217, fd, buffer, 32768) <= 0:
                break
    """,
    "errors": """
        fd = os.open(path("e"), os.O_RDWR | os.O_CREAT)
        expect(opens=1, creates=1)
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.pwrite(fd, ctypes.c_void_p(1), 10, ctypes.c_long(0)) == -1
        expect(writes=1, write_errors=1)
        os.write(fd, b"12345")
        expect(writes=1, write_bytes=5)
        assert libc.pread(fd, ctypes.c_void_p(1), 5, ctypes.c_long(0)) == -1
        expect(reads=1, read_errors=1)
    """,
    "copies": """
        source = os.open(path("from"), os.O_RDONLY)
        target = os.open(path("to"), os.O_WRONLY | os.O_CREAT)
        expect(opens=2, creates=1)
        left = 200_000
        while left:
            n = os.copy_file_range(source, target, left)
            expect(splice_reads=1, splice_writes=1, splice_read_bytes=n, splice_write_bytes=n)
            left -= n
        one, other = socket.socketpair()
        os.lseek(source, 0, 0)
        sent = 0
        while sent < 50_000:
            n = os.sendfile(one.fileno(), source, sent, 50_000 - sent)
            expect(splice_reads=1, splice_read_bytes=n)
            sent += n
            received = 0
            while received < n:
                received += len(other.recv(1 << 20))
        reader, writer = os.pipe()
        n = os.splice(source, writer, 10_000)
        expect(splice_reads=1, splice_read_bytes=n)
        n = os.splice(reader, target, n)
        expect(splice_writes=1, splice_write_bytes=n)
        n = os.sendfile(target, source, 0, 1234)
        expect(splice_reads=1, splice_writes=1, splice_read_bytes=n, splice_write_bytes=n)
    """,
    "threads": """
        def work():
            fd = os.open(path("t"), os.O_RDONLY)
            for _ in range(300):
                os.pread(fd, 512, 0)
        threads = [threading.Thread(target=work) for _ in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        expect(opens=64, reads=64 * 300, read_bytes=64 * 300 * 512)
    """,
    "mmap": """
        fd = os.open(path("m"), os.O_RDONLY)
        expect(opens=1)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(fd, 4 << 20, prot=mmap.PROT_READ) as memory:
            expect(stats=1)  # by Python
            sum(memory[at] for at in range(0, 4 << 20, 4096))
    """,
}
"""Python code by name: `expect` adds to what is to be counted on the file system of `place`."""

FILE_SYSTEMS = ("ext4", "tmpfs", "overlay", "fuse", "nfs")


def scripts_on(kind: str) -> list[str]:
    """Return the scripts for a file system: emulated, all of them take long on all."""
    if not IS_NIGHTLY and kind not in {"ext4", "nfs"}:
        return ["read_write"]
    return [name for name in SCRIPTS if (kind, name) != ("fuse", "mmap")]


FILES = {"copies": ("from", 300_001), "threads": ("t", 4096), "mmap": ("m", 4 << 20)}
"""Files that a script reads but did not write: name and size."""


def compare(root: str, place: str, name: str, *, version: str = "v2") -> Result:
    """Run a script on a file system; return expected and counted values."""
    shutil.rmtree(place, ignore_errors=True)
    os.makedirs(place)
    if name in FILES:
        file, size = FILES[name]
        Path(place, file).write_bytes(os.urandom(size))
        os.sync()
    job, expected = run_in_job(root, place, SCRIPTS[name], version=version)
    found = counted(job, place)
    for extra in ("since", "magic"):
        found.pop(extra, None)
    return {"expected": expected, "counted": found}


def run_dd(root: str, place: str, *arguments: str) -> Result:
    """Run dd in a job."""
    job, _ = run_in_job(
        root, place, f"subprocess.run({['dd', 'status=none', *arguments]!r}, check=True, cwd=place)"
    )
    return counted(job, place)


def fio_script(*options: str) -> str:
    """Return Python code that runs fio and tells its own figures."""
    command = [
        "fio", "--name=f", "--directory=.", "--size=1M", "--output-format=json", "--thread",
        *options,
    ]  # fmt: skip
    return f"""
        import json
        done = subprocess.run({command!r}, cwd=place, capture_output=True, text=True)
        told = json.loads(done.stdout[done.stdout.index("{{"):])["jobs"][0]
        assert not told["error"], done.stdout
        for kind in ("read", "write"):
            expect(**{{f"{{kind}}_calls": told[kind]["total_ios"]}})
            expect(**{{f"{{kind}}_size": told[kind]["io_bytes"]}})
    """


def run_fio(root: str, place: str, *options: str) -> Result:
    """Run fio in a job; return its own figures and the counted ones."""
    Path(place, FIO_FILE).write_bytes(os.urandom(1 << 20))
    os.sync()
    job, told = run_in_job(root, place, fio_script(*options))
    return {"told": told, "counted": counted(job, place)}


@contextmanager
def mounted(*arguments: str) -> Generator[str]:
    """Mount something for a while; the last argument is the mount point."""
    os.makedirs(arguments[-1], exist_ok=True)
    subprocess.run(["mount", *arguments], check=True)
    try:
        yield arguments[-1]
    finally:
        subprocess.run(["umount", "-l", arguments[-1]], check=False)


@contextmanager
def file_systems() -> Generator[dict[str, str]]:
    """Mount those that there are; return places in them by name."""
    base = "/mnt"
    with ExitStack() as stack:
        places: dict[str, str] = {}
        disk = f"{base}/disk.img"
        subprocess.run(["truncate", "-s", "400M", disk], check=True)
        subprocess.run(["mkfs.ext4", "-q", "-F", disk], check=True)
        ext4 = stack.enter_context(mounted("-o", "loop", disk, f"{base}/ext4"))
        places["ext4"] = f"{ext4}/p"
        places["tmpfs"] = stack.enter_context(mounted("-t", "tmpfs", "t", f"{base}/tmpfs")) + "/p"
        for name in ("lower", "upper", "work", "exported", "behind"):
            os.mkdir(f"{ext4}/{name}")
        layers = f"lowerdir={ext4}/lower,upperdir={ext4}/upper,workdir={ext4}/work"
        with suppress(subprocess.CalledProcessError):
            overlay = mounted("-t", "overlay", "-o", layers, "o", f"{base}/overlay")
            places["overlay"] = stack.enter_context(overlay) + "/p"
        with suppress(subprocess.CalledProcessError):
            os.makedirs(f"{base}/fuse")
            subprocess.run(["bindfs", f"{ext4}/behind", f"{base}/fuse"], check=True)
            places["fuse"] = f"{base}/fuse/p"
        try:
            places["nfs"] = stack.enter_context(nfs(f"{ext4}/exported", f"{base}/nfs")) + "/p"
        except (subprocess.CalledProcessError, OSError):
            traceback.print_exc()
        yield places


@contextmanager
def nfs(exported: str, point: str) -> Generator[str]:
    """Export a directory and mount it over loopback."""
    subprocess.run(["modprobe", "nfsd"], check=True)
    subprocess.run(["modprobe", "nfsv4"], check=True)
    subprocess.run(["mount", "-t", "nfsd", "nfsd", "/proc/fs/nfsd"], check=False)
    for directory in ("/var/lib/nfs", "/run/rpc_pipefs", "/var/lib/nfs/v4recovery"):
        os.makedirs(directory, exist_ok=True)
    Path("/var/lib/nfs/etab").touch()
    Path("/var/lib/nfs/rmtab").touch()
    subprocess.Popen(["rpc.mountd", "-F"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    options = "rw,no_root_squash,insecure,no_subtree_check,fsid=0"
    subprocess.run(["exportfs", "-o", options, f"127.0.0.1:{exported}"], check=True)
    subprocess.run(["rpc.nfsd", "-N", "3", "-V", "4", "2"], check=True)
    for _ in range(50):  # it is refused until the server runs
        with suppress(OSError):
            Path("/proc/fs/nfsd/v4_end_grace").write_text("Y")
            break
        time.sleep(0.2)
    with mounted("-t", "nfs4", "-o", "vers=4.2,soft,timeo=100", "127.0.0.1:/", point) as place:
        yield place


@contextmanager
def other_host() -> Generator[None]:
    """Have a network beside loopback: a network namespace at the other end of a veth pair."""
    for command in (
        "netns add other",
        "link add near type veth peer name far netns other",
        "addr add 10.99.0.1/24 dev near",
        "link set near up",
        "-n other addr add 10.99.0.2/24 dev far",
        "-n other link set far up",
    ):
        subprocess.run(["ip", *command.split()], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "netns", "delete", "other"], check=False)


@contextmanager
def all_processors() -> Generator[None]:
    """Have the machine use all its processors for a while; it starts with one."""
    others = sorted(Path("/sys/devices/system/cpu").glob("cpu[1-9]*/online"))
    for each in others:
        each.write_text("1")
    try:
        yield
    finally:
        for each in others:
            each.write_text("0")


NETWORK = {
    "tcp": """
        server = socket.create_server(("127.0.0.1", 0))
        def serve():
            peer, _ = server.accept()
            # The bytes that wait are looked at first; all of them are wanted at once.
            peer.recv(10, socket.MSG_PEEK)
            while data := peer.recv(100_000, socket.MSG_WAITALL):
                expect(received_bytes=len(data), receives=1)
        thread = threading.Thread(target=serve)
        thread.start()
        client = socket.create_connection(server.getsockname())
        for size in (1, 1000, 65_537, 2_000_003):
            data = b"x" * size
            while data:
                n = client.send(data)
                expect(sent_bytes=n, sends=1)
                data = data[n:]
        client.close()
        thread.join()
    """,
    "udp": """
        one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        one.bind(("127.0.0.1", 0))
        other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for n in range(50):
            expect(sends=1, sent_bytes=other.sendto(b"y" * (n * 20), one.getsockname()))
            one.recv(4, socket.MSG_PEEK)
            expect(receives=1, received_bytes=len(one.recv(2000)))
    """,
    "udp6": """
        one = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        one.bind(("::", 0))
        port = one.getsockname()[1]
        other = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        for address in ("::1", "::ffff:127.0.0.1"):
            expect(sends=1, sent_bytes=other.sendto(b"z" * 999, (address, port)))
            expect(receives=1, received_bytes=len(one.recv(2000)))
    """,
    "tcp_sendfile": """
        server = socket.create_server(("127.0.0.1", 0))
        def serve():
            peer, _ = server.accept()
            while data := peer.recv(100_000):
                expect(received_bytes=len(data), receives=1)
        thread = threading.Thread(target=serve)
        thread.start()
        client = socket.create_connection(server.getsockname())
        with open("/bin/bash", "rb") as file:
            at = 0
            while at < 500_000:
                n = os.sendfile(client.fileno(), file.fileno(), at, 500_000 - at)
                expect(sent_bytes=n)
                at += n
        client.close()
        thread.join()
    """,
    "tcp_veth": """
        server = elsewhere(socket.create_server, ("10.99.0.2", 0))
        def serve():
            peer, _ = server.accept()
            while data := peer.recv(100_000):
                expect(received_bytes=len(data), receives=1)
        thread = threading.Thread(target=serve)
        thread.start()
        client = socket.create_connection(server.getsockname())
        for size in [100_001] * 50:
            data = b"x" * size
            while data:
                n = client.send(data)
                expect(sent_bytes=n, sends=1)
                data = data[n:]
        client.close()
        thread.join()
    """,
    "udp_veth": """
        one = elsewhere(socket.socket, socket.AF_INET, socket.SOCK_DGRAM)
        one.bind(("10.99.0.2", 0))
        other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for n in range(50):
            expect(sends=1, sent_bytes=other.sendto(b"y" * (1 + n * 100), one.getsockname()))
            expect(receives=1, received_bytes=len(one.recv(9000)))
    """,
}


def compare_network(root: str, name: str) -> Result:
    job, expected = run_in_job(root, "/", NETWORK[name])
    found = {
        f"{key.protocol}{' loopback' if key.is_loopback else ''}": traffic._asdict()
        for key, traffic in read_network().entries.items()
        if key.job == job
    }
    for traffic in found.values():
        del traffic["since"]
    return {"expected": expected, "counted": found}


FIO_FILE = "f.0.0"
"""fio's name of its first file."""

_FIO = {
    "libaio direct": ("--ioengine=libaio", "--iodepth=16", "--bs=4k", "--rw=randrw", "--direct=1"),
    "io_uring": ("--ioengine=io_uring", "--iodepth=16", "--bs=4k", "--rw=randrw"),
    "io_uring direct": (
        "--ioengine=io_uring", "--iodepth=16", "--bs=4k", "--rw=randrw", "--direct=1",
    ),
    "io_uring fixed": (
        "--ioengine=io_uring", "--iodepth=8", "--bs=8k", "--rw=randrw", "--fixedbufs",
        "--registerfiles",
    ),
    "io_uring sqpoll": (
        "--ioengine=io_uring", "--iodepth=8", "--bs=8k", "--rw=randrw", "--sqthread_poll=1",
    ),
}  # fmt: skip


FIO = _FIO if IS_NIGHTLY else {name: _FIO[name] for name in ("libaio direct", "io_uring")}


def attempt(results: Result, name: str, scenario: Callable[[], Any]) -> None:
    """Add the result of a scenario, or why it failed."""
    begin = time.monotonic()
    try:
        results[name] = scenario()
    except Exception:  # noqa: BLE001 - the test that looks for the result shows it
        results[name] = {"error": traceback.format_exc()}
    print(f"{name}: {time.monotonic() - begin:.1f} s", file=sys.stderr)


def count_known_programs() -> Result:
    """Run all programs whose I/O is known."""
    results: Result = {}
    with hierarchy("v2") as root, file_systems() as places:
        for kind, place in places.items():
            for name in scripts_on(kind):
                attempt(results, f"{kind} {name}", partial(compare, root, place, name))
        ext4 = places["ext4"]
        dd = ["if=/dev/zero", "of=d", "bs=1M", "count=8", "conv=notrunc"]
        attempt(results, "dd", partial(run_dd, root, ext4, *dd))
        attempt(results, "dd direct", partial(run_dd, root, ext4, *dd, "oflag=direct"))
        read = ["if=d", "of=/dev/null", "bs=64K", "iflag=direct"]
        attempt(results, "dd direct read", partial(run_dd, root, ext4, *read))
        for name, options in FIO.items():
            attempt(results, f"fio {name}", partial(run_fio, root, ext4, *options))
        with other_host():
            for name in NETWORK:
                attempt(results, f"network {name}", partial(compare_network, root, name))
    with hierarchy("v1") as root:
        attempt(results, "v1", partial(compare, root, "/tmp/v1", "read_write", version="v1"))
    results["lost"] = count_lost(read_io(), read_network())
    return results


def as_user(group: int, function: Callable[[], Any]) -> Any:
    """Return what a function returns in a process without privilege; its errors as text."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(group)
            os.setuid(NOBODY)
            found = function()
        except BaseException as error:  # noqa: BLE001 - the parent returns it
            found = repr(error)
        os.write(writer, json.dumps(found).encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as told:
        said = told.read()
    os.waitpid(child, 0)
    return json.loads(said)


def read_without_privilege() -> Result:
    """Read often as a user of the group, and once as another one."""

    def read() -> list[bool]:
        for _ in range(_READINGS - 1):
            read_io()
            read_network()
        return [bool(read_io().entries), bool(read_network().entries)]

    allowed, denied = as_user(NOBODY, read), as_user(NOBODY - 1, read)
    modes = {
        name: f"{os.stat(Path(DIRECTORY, name)).st_mode & 0o7777:04o}"
        for name in (pins.IO, pins.NETWORK, pins.IO_PROGRAMS)
    }
    return {"allowed": allowed, "denied": denied, "modes": modes}


def unload() -> Result:
    """Unload everything; return the programs of the kernel before, loaded and after."""
    found: Result = {"loaded": len(own_programs())}
    status = read_status(DIRECTORY)
    found["status"] = [status.state, status.io, status.not_counted, status.problems]
    loading.unload_io(DIRECTORY)
    found["without io"] = sorted(os.listdir(DIRECTORY))
    loading.unload(DIRECTORY)
    for _ in range(600):  # the kernel frees them after a while
        if not own_programs():
            break
        time.sleep(0.1)
    found["unloaded"] = own_programs()
    found["left"] = os.path.exists(DIRECTORY) or DIRECTORY in Path("/proc/mounts").read_text()
    return found


def own_programs() -> list[int]:
    """Return the kernel's numbers of all programs."""
    library = ctypes.CDLL("libbpf.so.1", use_errno=True)
    number, found = ctypes.c_uint32(0), list[int]()
    while not library.bpf_prog_get_next_id(number, ctypes.byref(number)):
        found.append(number.value)
    return found


def do_without(loaded: loading.Loaded) -> Result:
    """Count on a kernel without many functions."""
    found = read_io()
    missing = [hook.counts for hook in missing_hooks(found.header.features)]
    with hierarchy("v2") as root:
        counted = compare(root, "/mnt/p", "vectors")
    return {"left_out": dict(loaded.left_out), "missing": missing, **counted}


WRITE = """
    fd = os.open(path("x"), os.O_WRONLY | os.O_CREAT)
    os.write(fd, b"z" * 100)
"""


def overflow() -> Result:
    """Have more jobs than there is room for; the next one finds the room of those that ended."""
    os.makedirs("/mnt/q", exist_ok=True)
    with hierarchy("v2") as root:
        jobs = [run_in_job(root, "/mnt/q", WRITE)[0] for _ in range(20)]
        found = read_io()
        written = [
            counts.write_bytes
            for key, counts in found.entries.items()
            if key.job in jobs and counts.writes
        ]
        read_io()
        left = sorted({key.job for key in read_io().entries if key.job in jobs})
        job, _ = run_in_job(root, "/mnt/q", WRITE)
        later = counted(job, "/mnt/q").get("write_bytes")
    return {
        "jobs": len(jobs), "written": written, "lost": found.lost.write_bytes, "later": later,
        "left": left,
    }  # fmt: skip


MOUNTS = """
    libc = ctypes.CDLL(None, use_errno=True)
    for n in range({number}):
        os.mkdir(path(str(n)))
        assert not libc.mount(b"x", path(str(n)).encode(), b"tmpfs", 0, None)
        fd = os.open(path(f"{{n}}/x"), os.O_WRONLY | os.O_CREAT)
        os.write(fd, b"z" * 100)
        os.close(fd)
    for n in range({number}):
        libc.umount2(path(str(n)).encode(), 2)
"""


def mount_many() -> Result:
    """Have a job that mounts more file systems than are told apart."""
    os.makedirs("/mnt/s", exist_ok=True)
    with hierarchy("v2") as root:
        job, _ = run_in_job(root, "/mnt/s", MOUNTS.format(number=70))
    entries = {key: counts for key, counts in read_io().entries.items() if key.job == job}
    return {"entries": len(entries), "bytes": sum(each.write_bytes for each in entries.values())}


def crowd() -> Result:
    """Have a job with more mounts than entries of the small table, then jobs of others."""
    os.makedirs("/mnt/c", exist_ok=True)
    read_io()  # what ended makes room
    before = read_io()
    with hierarchy("v2") as root:
        run_in_job(root, "/mnt/c", MOUNTS.format(number=30))
        jobs = [run_in_job(root, "/mnt/c", WRITE)[0] for _ in range(2)]
    found = read_io()
    written = [
        sum(counts.write_bytes for key, counts in found.entries.items() if key.job == job)
        for job in jobs
    ]
    return {"written": written, "lost": found.lost.write_bytes - before.lost.write_bytes}


def show_mounts() -> Result:
    """Run a program in a job between two readings of `ccagent top`; return its mounts and screen.

    Also the mounts of the report of the job.
    """
    from ccagent.machine.node import Node
    from ccagent.views.job.mounts import format_mounts, read_mounts
    from ccagent.views.top.mounts import MountWatch
    from ccagent.views.top.screen import draw
    from ccagent.views.top.snapshot import TopSnapshot
    from ccagent.views.top.state import ViewState

    node, watch = Node(), MountWatch(DIRECTORY)
    os.makedirs("/mnt/v", exist_ok=True)
    with hierarchy("v2") as root:
        watch.read(node, ())
        job, expected = run_in_job(root, "/mnt/v", SCRIPTS["read_write"])
        mounts, note = watch.read(node, ())
    snapshot = TopSnapshot(node="vm", cluster="", time=0, uptime=0, mounts=mounts)
    screen = draw(snapshot, ViewState(view="mounts"), 80, 100, has_keys=False)
    own = [one for one in mounts if one.job == job]
    return {
        "expected": expected,
        "mounts": [[one.read, one.written] for one in own],
        "note": note,
        "screen": [line.text.rstrip() for line in screen.lines],
        "report": format_mounts(read_mounts(node, job, DIRECTORY)),
        "other directory": MountWatch("/run/nowhere").read(node, ())[1],
    }


def expire() -> Result:
    """Return when the entry of an ended job is there."""
    os.makedirs("/mnt/r", exist_ok=True)
    with hierarchy("v2") as root:
        job, _ = run_in_job(root, "/mnt/r", WRITE)

    def is_there() -> bool:
        return any(key.job == job for key in read_io().entries)

    time.sleep(5)
    found: Result = {"first": is_there(), "ns": counted(job, "/mnt/r").get("write_ns", 0)}
    found["last"] = [is_there() for _ in range(3)]
    return found


def main() -> None:
    """Run all scenarios; print their results as JSON, by name."""
    results: Result = {}
    loaded = loading.load(DIRECTORY, group=NOBODY, io=IoOptions())
    results |= {"left_out": dict(loaded.left_out), "complaint": loaded.complaint}
    with all_processors():
        results |= count_known_programs()
    attempt(results, "unprivileged", read_without_privilege)
    attempt(results, "many mounts", mount_many)
    attempt(results, "views", show_mounts)
    attempt(results, "unload", unload)
    # A build that keeps ended jobs for four seconds, on a kernel that lacks functions.
    options = IoOptions(has_time=True, lacking=_LACKING, entries=24)
    small = loading.load(DIRECTORY, programs=objects(sys.argv[1]), io=options)
    attempt(results, "lacking", partial(do_without, small))
    attempt(results, "expire", expire)
    attempt(results, "overflow", overflow)
    attempt(results, "crowd", crowd)
    loading.unload(DIRECTORY)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
