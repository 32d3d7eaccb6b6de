"""Jobs that ended, and more jobs, mounts and traffic than the kernel's tables have room for."""

from __future__ import annotations

import os
import time

from tests.support.io_jobs import Result, counted, read_io, read_network, run_in_job
from tests.support.io_mounts import other_host
from tests.support.io_traffic import compare_network
from tests.support.kernel_programs import hierarchy

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


KEPT = 1
"""Seconds for which the programs of these tests keep the entries of ended jobs."""

_FIRST_TALKER, TALKERS = 500_000, 260
"""Jobs with four kinds of traffic each: more kinds than the table `network` has entries."""

TALK = """
    def enter(group):
        with open(f"{{group}}/cgroup.procs", "w") as file:
            file.write("0")
    others = [elsewhere(socket.create_server, ("10.99.0.2", 0)),
              socket.create_server(("127.0.0.1", 0))]
    streams = [socket.create_connection(other.getsockname()) for other in others]
    peers = [other.accept()[0] for other in others]
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    near = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    near.bind(("127.0.0.1", 0))
    scope = "{root}/system.slice/slurmstepd.scope"
    for number in range({number}):
        group = f"{{scope}}/job_{{{first} + number}}"
        os.mkdir(group)
        enter(group)
        for stream in streams:
            stream.send(b"x" * (number + 1))
        one.sendto(b"y" * (number + 1), near.getsockname())
        one.sendto(b"y" * (number + 1), ("10.99.0.2", 9))
        enter({root!r})
        os.rmdir(group)
"""


def talk_in_many_jobs() -> Result:
    """Have many jobs of one user send in all ways, then one of another user."""
    before = read_network().lost
    with hierarchy("v2") as root, other_host():
        run_in_job(root, "/", TALK.format(root=root, first=_FIRST_TALKER, number=TALKERS))
        other = compare_network(root, "udp")
    reading = read_network()
    sent: dict[int, list[int]] = {}
    for key, traffic in reading.entries.items():
        sent.setdefault(key.job - _FIRST_TALKER, []).append(traffic.sent_bytes)
    return {
        "sent": [sent.get(number) for number in range(TALKERS)],
        "other": other,
        "lost": reading.lost.sends - before.sends,
    }


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


def expire() -> Result:
    """Return when the entry of an ended job is there."""
    os.makedirs("/mnt/r", exist_ok=True)
    with hierarchy("v2") as root:
        job, _ = run_in_job(root, "/mnt/r", WRITE)

    def is_there() -> bool:
        return any(key.job == job for key in read_io().entries)

    time.sleep(KEPT + 0.5)
    found: Result = {"first": is_there(), "ns": counted(job, "/mnt/r").get("write_ns", 0)}
    found["last"] = [is_there() for _ in range(3)]
    return found
