"""RDMA objects of processes and jobs: queue pairs, completion queues, memory regions, contexts.

Source: the kernel's netlink interface for RDMA, which `rdma resource show` asks, too. It needs no
privilege. See include/uapi/rdma/rdma_netlink.h and drivers/infiniband/core/nldev.c of Linux.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import NotHereError, ProgramError
from ccagent.machine.cgroup.jobs import job_of_process
from ccagent.machine.infiniband_ports import DEVICES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.machine.node import Node

_NETLINK_RDMA, _NLDEV = 20, 5 << 10
_DUMP, _ERROR, _DONE = 0x301, 2, 3
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_TYPE_BITS = 0x3FFF
_NUMBERS = {1: struct.Struct("=B"), 4: struct.Struct("=I"), 8: struct.Struct("=Q")}
_CODE = struct.Struct("=i")
_LACKING = (errno.EINVAL, errno.EOPNOTSUPP)
"""Errors for commands that the kernel is too old for, or that the device does not know."""
_GET, _STAT_GET = 1, 17
_DEVICE_INDEX, _DEVICE_NAME, _PORT, _PID = 1, 2, 3, 28
_COUNTER_RESOURCE, _HW_COUNTERS, _HW_NAME, _HW_VALUE = 75, 80, 82, 83
_QUEUE_PAIRS = 19
_ANSWER = 1 << 18
_PATIENCE = 2.0
_MOST_ANSWERS = 20_000
"""Maximum of netlink messages of a dump, each up to some pages: far beyond any card's objects."""


class _Kind(NamedTuple):
    """A kind of object: its command, its table's attribute, and that of the size of an object."""

    command: int
    table: int
    size: int


_KINDS = {
    "queue_pairs": _Kind(10, 19, 0),
    "completion_queues": _Kind(12, 35, 37),
    "memory_regions": _Kind(13, 40, 45),
    "contexts": _Kind(22, 86, 0),
    "receive_queues": _Kind(23, 88, 0),
}
_SIZES = {"completion_queues": "completion_entries", "memory_regions": "memory"}
"""The sums of the sizes of objects: entries, and B."""
_STATISTICS_TABLE = 77

Attributes = list[tuple[int, bytes]]


class RdmaObject(NamedTuple):
    """What a process has on a device: the number or amount of one kind. port: 0 for none."""

    pid: int
    device: str
    port: int
    name: str
    amount: int


class RdmaPart(NamedTuple):
    """A device, or one of its ports, as a job uses it. port: 0 for the device."""

    job: int
    device: str
    port: int


RdmaUse = dict[str, int]
"""Numbers and amounts by name: those of `_KINDS`, `_SIZES`, and the kernel's counters of requests
and errors, if an administrator has them counted by process (`rdma statistic qp set ... pid on`)."""


def read_job_rdma(node: Node) -> dict[RdmaPart, RdmaUse]:
    """Return the use of RDMA by jobs. Processes outside of jobs are ignored.

    Raise NotHereError without an RDMA device, ProgramError if the kernel refuses.
    """
    jobs: dict[int, int] = {}
    found: dict[RdmaPart, RdmaUse] = {}
    for each in read_objects(node):
        if each.pid not in jobs:
            jobs[each.pid] = job_of_process(node, each.pid)
        job = jobs[each.pid]
        if job:
            use = found.setdefault(RdmaPart(job, each.device, each.port), {})
            use[each.name] = use.get(each.name, 0) + each.amount
    return found


def sum_job_rdma(parts: dict[RdmaPart, RdmaUse]) -> dict[int, RdmaUse]:
    """Return the use of all devices by job."""
    found: dict[int, RdmaUse] = {}
    for part, use in parts.items():
        sums = found.setdefault(part.job, {})
        for name, amount in use.items():
            sums[name] = sums.get(name, 0) + amount
    return found


def read_objects(node: Node) -> Iterator[RdmaObject]:
    """Ask the kernel for the RDMA objects of all processes. Raise as `read_job_rdma` does."""
    if not node.is_live:
        raise NotHereError("a recorded machine has no kernel to ask")
    if not node.list(DEVICES):
        raise NotHereError(f"/{DEVICES}: no device")
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_RDMA) as kernel:
            kernel.settimeout(_PATIENCE)
            devices = _dump(kernel, _GET)
            for device in sorted(parse_devices(devices)):
                for name, kind in _KINDS.items():
                    yield from parse_objects(_dump(kernel, kind.command, device), name)
                yield from parse_statistics(_dump(kernel, _STAT_GET, device))
    except OSError as error:
        raise ProgramError(f"netlink of RDMA: {error.strerror or error}") from error


def _dump(kernel: socket.socket, command: int, device: int | None = None) -> list[Attributes]:
    """Return the objects of a device; [] if the kernel is too old for the command."""
    request = b""
    if device is not None:
        request = _pack(_DEVICE_INDEX, device)
        if command == _STAT_GET:
            request += _pack(_COUNTER_RESOURCE, _QUEUE_PAIRS)
    size = _HEADER.size + len(request)
    kernel.send(_HEADER.pack(size, _NLDEV | command, _DUMP, 1, 0) + request)
    found: list[Attributes] = []
    for _ in range(_MOST_ANSWERS):
        if not add_messages(kernel.recv(_ANSWER), found):
            return found
    raise ProgramError("netlink of RDMA: the kernel's answer does not end")


def _pack(kind: int, number: int) -> bytes:
    return _ATTRIBUTE.pack(8, kind) + _NUMBERS[4].pack(number)


def add_messages(answer: bytes, found: list[Attributes]) -> bool:
    """Add the attributes of each message of an answer. Return whether more answers follow."""
    offset = 0
    while offset + _HEADER.size <= len(answer):
        size, kind, *_ = _HEADER.unpack_from(answer, offset)
        if kind == _ERROR:
            raise_refusal(answer[offset + _HEADER.size :])
        if kind in {_DONE, _ERROR} or size < _HEADER.size:
            return False
        if offset + size > len(answer):
            break
        found.append(parse_attributes(answer[offset + _HEADER.size : offset + size]))
        offset += (size + 3) & ~3
    return True


def raise_refusal(content: bytes) -> None:
    """Raise OSError for the code of an error message, unless the kernel or device lacks it."""
    code = _CODE.unpack_from(content)[0] if len(content) >= _CODE.size else 0
    if code and -code not in _LACKING:
        raise OSError(-code, os.strerror(-code))


def parse_attributes(content: bytes) -> Attributes:
    """Return the attributes of a message or table as (type, value). A cut one ends the list."""
    found: Attributes = []
    offset = 0
    while offset + _ATTRIBUTE.size <= len(content):
        size, kind = _ATTRIBUTE.unpack_from(content, offset)
        if size < _ATTRIBUTE.size or offset + size > len(content):
            break
        found.append((kind & _TYPE_BITS, content[offset + _ATTRIBUTE.size : offset + size]))
        offset += (size + 3) & ~3
    return found


def _number(value: bytes) -> int:
    form = _NUMBERS.get(len(value))
    return 0 if form is None else int(form.unpack(value)[0])


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode("utf-8", "replace")


def parse_devices(messages: list[Attributes]) -> list[int]:
    """Return the indices of the devices in the answer to a request for devices."""
    return [
        _number(value) for message in messages for kind, value in message if kind == _DEVICE_INDEX
    ]


def _list_entries(messages: list[Attributes], table: int) -> Iterator[tuple[str, dict[int, bytes]]]:
    """Yield the entries of a table with their device."""
    for message in messages:
        device = _text(dict(message).get(_DEVICE_NAME, b""))
        for kind, value in message:
            if kind == table:
                for _, entry in parse_attributes(value):
                    yield device, dict(parse_attributes(entry))


def parse_objects(messages: list[Attributes], name: str) -> Iterator[RdmaObject]:
    """Yield the objects of processes. Those of the kernel have no process and are left out."""
    kind = _KINDS[name]
    for device, entry in _list_entries(messages, kind.table):
        pid = _number(entry.get(_PID, b""))
        if pid:
            port = _number(entry.get(_PORT, b""))
            yield RdmaObject(pid, device, port, name, 1)
            if kind.size in entry:
                yield RdmaObject(pid, device, port, _SIZES[name], _number(entry[kind.size]))


def parse_statistics(messages: list[Attributes]) -> Iterator[RdmaObject]:
    """Yield the counters of queue pairs that are counted by process."""
    for device, entry in _list_entries(messages, _STATISTICS_TABLE):
        pid, port = _number(entry.get(_PID, b"")), _number(entry.get(_PORT, b""))
        for _, counter in parse_attributes(entry.get(_HW_COUNTERS, b"")) if pid else ():
            pair = dict(parse_attributes(counter))
            name = _text(pair.get(_HW_NAME, b""))
            yield RdmaObject(pid, device, port, name, _number(pair.get(_HW_VALUE, b"")))
