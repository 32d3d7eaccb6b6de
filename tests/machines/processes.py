"""Processes of a composed machine, and their files as the kernel writes them (proc(5))."""

from __future__ import annotations

from dataclasses import dataclass

_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "disk sleep",
    "T": "stopped",
    "I": "idle",
    "Z": "zombie",
}
_KERNEL_THREAD = 0x0020_8040
_FORKED = 0x0040_0040
_EXITING = 0x0040_000C
_UNLIMITED = 2**64 - 1
_TEXT = 0x5555_5555_4000
_STACK = 0x7FFF_FFFF_E000


@dataclass(frozen=True, kw_only=True)
class Memory:
    """KB, multiples of the page size: text, data with stack, and what is resident of each kind."""

    text: int = 0
    data: int = 0
    anonymous: int = 0
    file: int = 0
    shared: int = 0

    @property
    def resident(self) -> int:
        return self.anonymous + self.file + self.shared

    @property
    def size(self) -> int:
        """All that is mapped: more is mapped than is ever touched."""
        return self.text + self.data + self.file * 2 + self.shared


@dataclass(frozen=True, kw_only=True)
class Io:
    """Bytes of read and write calls, bytes that reached the disk, and bytes truncated before."""

    read: int = 0
    written: int = 0
    from_disk: int = 0
    to_disk: int = 0
    cancelled: int = 0

    def text(self) -> str:
        """/proc/PID/io."""
        return (
            f"rchar: {self.read}\n"
            f"wchar: {self.written}\n"
            f"syscr: {-(-self.read // 4096)}\n"
            f"syscw: {-(-self.written // 4096)}\n"
            f"read_bytes: {self.from_disk}\n"
            f"write_bytes: {self.to_disk}\n"
            f"cancelled_write_bytes: {self.cancelled}\n"
        )


NO_MEMORY = Memory()
NO_IO = Io()


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process.

    comm: at most 15 bytes, any but NUL; longer for kernel workers.
    group: the process group, its own without one; likewise the session.
    user_time, system_time and those of waited-for children, started: ticks, the last since boot.
    cgroup: the text of /proc/PID/cgroup.
    uid: the effective user; real_uid: the real one if it is another (a set-user-ID program).
    cmdline: of /proc/PID/cmdline, which is left out without it: only slurmstepd's is ever read.
    nested: the pid in the PID namespace of its container; 0 outside of one.
    mounts, users: /proc/PID/mountinfo and uid_map, left out without them.
    io: None where /proc/PID/io can't be read.
    """

    pid: int
    parent: int
    comm: bytes
    cgroup: str
    started: int
    uid: int = 0
    real_uid: int | None = None
    cmdline: bytes = b""
    nested: int = 0
    mounts: str = ""
    users: str = ""
    state: str = "S"
    group: int = 0
    session: int = 0
    terminal: int = 0
    threads: int = 1
    kernel: bool = False
    user_time: int = 0
    system_time: int = 0
    children_user_time: int = 0
    children_system_time: int = 0
    nice: int = 0
    cpu: int = 0
    memory: Memory = NO_MEMORY
    io: Io | None = NO_IO

    def stat(self, page_size: int) -> bytes:
        """/proc/PID/stat: 52 fields; the command stands raw in its parentheses."""
        group = 0 if self.kernel else self.group or self.pid
        session = 0 if self.kernel else self.session or group
        has_memory = self.memory.size > 0
        flags = _KERNEL_THREAD if self.kernel else _EXITING if self.state == "Z" else _FORKED
        text = _TEXT if has_memory else 0
        stack = _STACK if has_memory else 0
        data = text + self.memory.text * 1024
        fields = [
            self.state,
            self.parent,
            group,
            session,
            self.terminal,
            group if self.terminal else -1,  # tpgid
            flags,
            self.memory.resident // 4,  # minflt
            0,  # cminflt
            0,  # majflt
            0,  # cmajflt
            self.user_time,
            self.system_time,
            self.children_user_time,
            self.children_system_time,
            20 + self.nice,
            self.nice,
            self.threads,
            0,  # itrealvalue
            self.started,
            self.memory.size * 1024,
            self.memory.resident * 1024 // page_size,
            _UNLIMITED,
            text,
            data,
            stack,
            *[0] * 8,  # kstkesp, kstkeip, the four signal masks, wchan, nswap
            0,  # cnswap
            0 if self.kernel else 17,  # exit_signal
            self.cpu,
            *[0] * 5,  # rt_priority, policy, delayacct_blkio_ticks, guest_time, cguest_time
            data,
            data + self.memory.data * 512,
            data + self.memory.data * 512,
            *([stack + 1, stack + 2, stack + 2, stack + 3] if has_memory else [0] * 4),
            0,  # exit_code
        ]
        return b"%d (%s) %s\n" % (self.pid, self.comm, " ".join(map(str, fields)).encode())

    def statm(self, page_size: int) -> str:
        """/proc/PID/statm: size, resident, shared, text, lib, data, dt; pages."""
        memory = self.memory
        kilobytes = (
            memory.size,
            memory.resident,
            memory.file + memory.shared,
            memory.text,
            0,
            memory.data,
            0,
        )
        return " ".join(str(part * 1024 // page_size) for part in kilobytes) + "\n"

    def status(self, *, old: bool) -> bytes:
        """/proc/PID/status; `old`: as before Linux 4.1, without RssAnon and its like."""
        # The kernel escapes here what it leaves raw in stat.
        name = self.comm.replace(b"\\", b"\\\\").replace(b"\n", b"\\n")
        ids = "\t".join([str(self.uid)] * 4)
        real = self.uid if self.real_uid is None else self.real_uid
        lines = [
            f"State:\t{self.state} ({_STATES[self.state]})",
            f"Tgid:\t{self.pid}",
            "Ngid:\t0",
            f"Pid:\t{self.pid}",
            f"PPid:\t{self.parent}",
            "TracerPid:\t0",
            f"Uid:\t{real}\t{self.uid}\t{self.uid}\t{self.uid}",
            f"Gid:\t{ids}",
            "FDSize:\t64",
            f"Groups:\t{self.uid} ",
        ]
        if not old:
            group = 0 if self.kernel else self.group or self.pid
            lines.insert(0, "Umask:\t0022")
            lines += [
                f"NStgid:\t{self.pid}",
                f"NSpid:\t{self.pid}" + (f"\t{self.nested}" if self.nested else ""),
                f"NSpgid:\t{group}",
                f"NSsid:\t{self.session or group}",
            ]
        if self.memory.size:
            lines += self._memory_lines(old=old)
        lines += [
            f"Threads:\t{self.threads}",
            "SigQ:\t0/127444",
            "voluntary_ctxt_switches:\t150",
            "nonvoluntary_ctxt_switches:\t1",
        ]
        return b"Name:\t%s\n%s\n" % (name, "\n".join(lines).encode())

    def _memory_lines(self, *, old: bool) -> list[str]:
        memory = self.memory
        sizes = [("VmPeak", memory.size), ("VmSize", memory.size)]
        sizes += [("VmHWM", memory.resident), ("VmRSS", memory.resident)]
        if not old:
            sizes += [
                ("RssAnon", memory.anonymous),
                ("RssFile", memory.file),
                ("RssShmem", memory.shared),
            ]
        sizes += [("VmData", memory.data), ("VmExe", memory.text), ("VmSwap", 0)]
        return [f"{name}:\t{size:8d} kB" for name, size in sizes]

    def files(self, page_size: int, *, old: bool) -> dict[str, bytes]:
        """The files of its directory by name."""
        files = {
            "stat": self.stat(page_size),
            "statm": self.statm(page_size).encode(),
            "status": self.status(old=old),
            "cgroup": self.cgroup.encode(),
        }
        if self.cmdline:
            files["cmdline"] = self.cmdline
        for name, text in {"mountinfo": self.mounts, "uid_map": self.users}.items():
            if text:
                files[name] = text.encode()
        if self.io is not None:
            files["io"] = self.io.text().encode()
        return files
