"""The processors of a machine: online hwthreads, sockets, cores, vendor and model."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ccagent.controls.file_feature import list_names, read_integer, read_word
from ccagent.errors import CcagentError

if TYPE_CHECKING:
    from ccagent.machine.node import Node

DIRECTORY = "sys/devices/system/cpu"

_CPU = re.compile(r"cpu([0-9]{1,6})", re.ASCII)
_MODEL = re.compile(rb"^(vendor_id|cpu family|model)\s*:\s*(\S+)$", re.MULTILINE)
_PART = 4096


class Processor(NamedTuple):
    """Vendor, family and model of x86; empty and 0 on other architectures."""

    vendor: str = ""
    family: int = 0
    model: int = 0


def parse_processor(content: bytes) -> Processor:
    """Parse the start of /proc/cpuinfo. The result is empty for other architectures."""
    fields: dict[bytes, bytes] = {}
    for name, value in _MODEL.findall(content):
        fields.setdefault(name, value)
    try:
        return Processor(
            fields[b"vendor_id"].decode("ascii", "replace"),
            int(fields[b"cpu family"]),
            int(fields[b"model"]),
        )
    except (KeyError, ValueError):
        return Processor()


def read_processor(node: Node) -> Processor:
    """Read vendor and model of the first processor."""
    try:
        descriptor_content = next(node.pieces("proc/cpuinfo"), b"")
    except CcagentError:
        return Processor()
    return parse_processor(descriptor_content[:_PART])


def list_cpus(node: Node) -> list[int]:
    """Return the online hwthreads."""
    numbers = [int(match[1]) for match in list_names(node, DIRECTORY, _CPU)]
    return [number for number in numbers if is_online(node, number)]


def is_online(node: Node, number: int) -> bool:
    """Return whether a hwthread is online. Without the file it can't be switched off."""
    return read_word(node, f"{DIRECTORY}/cpu{number}/online") in {"", "1"}


def first_sibling(node: Node, number: int) -> int:
    """Return the first hwthread of the core of a hwthread."""
    for name in ("core_cpus_list", "thread_siblings_list"):
        found = re.match(r"[0-9]{1,6}", read_word(node, f"{DIRECTORY}/cpu{number}/topology/{name}"))
        if found:
            return int(found[0])
    return number


def socket_of(node: Node, number: int) -> int:
    """Return the socket of a hwthread; 0 if the kernel does not know it."""
    try:
        found = read_integer(node, f"{DIRECTORY}/cpu{number}/topology/physical_package_id")
    except CcagentError:
        found = None
    return max(0, found or 0)
