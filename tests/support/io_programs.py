"""Programs whose I/O is known, and comparisons of what they did with what was counted."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.support.effort import IS_NIGHTLY
from tests.support.io_jobs import Result, counted, run_in_job

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
            if libc.getdents64(fd, buffer, 32768) <= 0:
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
    if IS_NIGHTLY or kind == "ext4":
        return [*SCRIPTS]
    return ["read_write", "mmap"] if kind == "nfs" else ["read_write"]


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
