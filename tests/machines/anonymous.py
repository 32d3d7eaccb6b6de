"""Taking out of a recording what says whose machine it was and who used it for what.

What stays is listed; everything else is replaced, in the order of its first appearance, so equal
things stay equal.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_KNOWN_COMMAND = re.compile(
    rb"init|systemd|\(sd-pam\)|systemd-(?:journal|logind|udevd|network|resolve)"
    rb"|agetty|login|sshd|sshd-session|sshd-auth|crond?|atd|auditd|rsyslogd|chronyd|ntpd"
    rb"|dbus-daemon|dbus-broker|dbus-broker-lau|polkitd|irqbalance|tuned|NetworkManager|sssd"
    rb"|munged|slurmd|slurmstepd|slurmctld|slurmdbd|slurm_script|srun"
    rb"|containerd|containerd-shim|dockerd|conmon|kubelet|crio|starter"
    rb"|rpcbind|rpc\.statd|automount"
)
"""Names that the processes of every cluster have, whoever runs them."""

_KNOWN_USER = re.compile(
    r"root|daemon|bin|sys|nobody|sshd|dbus|messagebus|polkitd|chrony|munge|slurm|rpc"
)

NOBODY = 65_534

_FIRST_USER = 1000
_HEXADECIMAL = re.compile(r"(?<![0-9A-Za-z])[0-9a-f]{12,64}(?![0-9A-Za-z])")
_UUID = re.compile(r"[0-9a-f]{8}([-_])[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{12}")
_ADDRESS = re.compile(rb"\[|\d+\.\d+\.|[0-9a-fA-F]*:[0-9a-fA-F]*:")
_RELEASE = re.compile(r"\d+(?:\.\d+)+(?:-\d+(?:\.\d+)*)?(?:\.el\d+(?:_\d+)?(?:\.\w+)?)?")
_SERIAL = re.compile(
    r"^((?:serial|identification|uuid)[^:\n]*:[ \t]*).+$", re.IGNORECASE | re.MULTILINE
)
_IDENTIFICATION = re.compile(r"(identification = )[0-9A-F]+")

_PLAIN_GROUP = re.compile(
    r"|(?:system|user|machine|app|session|background|kubepods)\.slice|init\.scope"
    r"|kubepods|kubepods-(?:burstable|besteffort)\.slice|burstable|besteffort|docker|container"
    r"|slurm|slurmstepd\.scope|system|user|job_\d+|step_(?:batch|extern|interactive|\d+)|task_(?:\d+|special)"
    r"|session-c?\d+\.scope"
)
_NODE_GROUP = re.compile(r"(slurm_)[^/]+|[^/]+(_slurmstepd\.scope)")
_USER_GROUP = re.compile(r"(uid_|user-|user@)(\d+)(|\.slice|\.service)")
_CONTAINER_GROUP = re.compile(
    r"(?:docker-|libpod-|libpod-conmon-|crio-|crio-conmon-|cri-containerd-)?ID(?:\.scope)?"
    r"|(?:kubepods(?:-burstable|-besteffort)?-)?pod(?:ID|UUID)(?:\.slice)?"
)
_SERVICE_GROUP = re.compile(r"([^@]+)(?:@[^/]*)?\.service")
_SUFFIX = re.compile(r"\.(?:service|scope|slice|mount|socket|swap)$")


class Anonymiser:
    """Replaces what it is given; remembers what it gave for what.

    `name` stands for the host, `user` tells the name of a user id.
    """

    def __init__(self, name: str, user: Callable[[int], str]) -> None:
        self.name = name
        self._user = user
        self._commands: dict[bytes, bytes] = {}
        self._ids: dict[int, int] = {}
        self._groups: dict[str, str] = {}
        self._hexadecimal: dict[str, str] = {}
        self.users: dict[int, str] = {}

    def uid(self, uid: int) -> int:
        """Those of people become 1001 and so on; who has a name becomes user1 and so on."""
        new = self._number(uid)
        if new not in self.users:
            self.users[new] = self._new_name(uid, new)
        return new

    def _number(self, number: int) -> int:
        """A user's or a group's id: a user's own group often has the same number."""
        if number < _FIRST_USER or number == NOBODY:
            return number
        return self._ids.setdefault(number, _FIRST_USER + len(self._ids) + 1)

    def _new_name(self, uid: int, new: int) -> str:
        name = self._user(uid)
        if not name or name.startswith("_user_"):
            return ""
        if uid >= _FIRST_USER and uid != NOBODY:
            return f"user{new - _FIRST_USER}"
        return name if _KNOWN_USER.fullmatch(name) else f"system{uid}"

    def command(self, comm: bytes, *, is_kernel: bool) -> bytes:
        """A command name that is known stays; kernel threads' may hold a server's address."""
        if _KNOWN_COMMAND.fullmatch(comm) or (is_kernel and not _ADDRESS.match(comm)):
            return comm
        return self._commands.setdefault(comm, b"cmd%d" % (len(self._commands) + 1))

    def status(self, text: bytes, command: bytes) -> bytes:
        """/proc/PID/status of a process whose command has become `command`."""
        lines: list[bytes] = []
        for line in text.split(b"\n"):
            key, _, value = line.partition(b":")
            if key == b"Name":
                lines.append(b"Name:\t" + command)
            elif key in {b"Uid", b"Gid"}:
                lines.append(key + b":" + b"".join(b"\t%d" % n for n in self._numbers(value)))
            elif key == b"Groups":
                lines.append(b"Groups:\t" + b"".join(b"%d " % n for n in self._numbers(value)))
            else:
                lines.append(line)
        return b"\n".join(lines)

    def _numbers(self, text: bytes) -> list[int]:
        return [self._number(int(number)) for number in text.split()]

    def cgroup(self, text: bytes) -> bytes:
        """/proc/PID/cgroup."""
        lines: list[str] = []
        for line in text.decode("utf-8", "replace").splitlines():
            number, controllers, path = line.split(":", 2)
            if controllers.startswith("name=") and controllers != "name=systemd":
                controllers = "name=" + self._numbered(controllers)
            path, deleted, _ = path.partition(" (deleted)")
            groups = "/".join(map(self.group, path.split("/")))
            lines.append(f"{number}:{controllers}:{groups}{deleted}\n")
        return "".join(lines).encode()

    def group(self, component: str) -> str:
        """One component of a cgroup's path."""
        if _PLAIN_GROUP.fullmatch(component):
            return component
        if node := _NODE_GROUP.fullmatch(component):
            return f"{node[1]}{self.name}" if node[1] else f"{self.name}{node[2]}"
        if user := _USER_GROUP.fullmatch(component):
            return f"{user[1]}{self.uid(int(user[2]))}{user[3]}"
        shape = _HEXADECIMAL.sub("ID", _UUID.sub("UUID", component))
        if _CONTAINER_GROUP.fullmatch(shape):
            return _HEXADECIMAL.sub(self._other_id, _UUID.sub(self._other_id, component))
        service = _SERVICE_GROUP.fullmatch(component)
        if service and _KNOWN_COMMAND.fullmatch(service[1].encode()):
            return f"{service[1]}.service"
        return self._numbered(component)

    def _numbered(self, group: str) -> str:
        suffix = _SUFFIX.search(group)
        return self._groups.setdefault(
            group, f"group{len(self._groups) + 1}{suffix[0] if suffix else ''}"
        )

    def _other_id(self, match: re.Match[str]) -> str:
        """Other hexadecimal digits in the same places, made from nothing but a count."""
        known = self._hexadecimal
        if match[0] not in known:
            digits = iter(hashlib.sha256(f"{self.name} {len(known)}".encode()).hexdigest())
            known[match[0]] = re.sub("[0-9a-f]", lambda _: next(digits), match[0])
        return known[match[0]]

    def cpuinfo(self, text: bytes) -> bytes:
        """/proc/cpuinfo, which on some architectures knows the serial number of the machine."""
        replaced = _SERIAL.sub(r"\g<1>0", text.decode("utf-8", "replace"))
        return _IDENTIFICATION.sub(r"\g<1>0", replaced).encode()

    def release(self, text: bytes) -> bytes:
        """A kernel's release, without what names who built it."""
        release = _RELEASE.search(text.decode("utf-8", "replace"))
        return (release[0] if release else "0.0.0").encode()


def split_stat(text: bytes) -> tuple[bytes, bytes, bytes]:
    """Split /proc/PID/stat into what stands before, in and after the command."""
    start, end = text.index(b"(") + 1, text.rindex(b")")
    return text[:start], text[start:end], text[end:]
