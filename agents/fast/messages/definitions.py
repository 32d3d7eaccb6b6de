"""Definitions of machines in messages: XML of libvirt, of harmless elements only."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from ccagent.agents.fast.messages.documents import show_value
from ccagent.errors import UnparsableError

if TYPE_CHECKING:
    from collections.abc import Sequence

_RULES = {
    path: dict(rule.split("=", 1) for rule in rules)
    for path, *rules in map(str.split, r"""
    domain type=kvm|qemu
    domain/name .=.*
    domain/uuid .=.*
    domain/title .=.*
    domain/description .=.*
    domain/memory unit=KiB|MiB|GiB .=\d{1,12}
    domain/currentMemory unit=KiB|MiB|GiB .=\d{1,12}
    domain/vcpu placement=static .=\d{1,6}
    domain/os
    domain/os/type arch=\w+ machine=[\w.-]+ .=hvm
    domain/os/boot dev=hd|cdrom|network
    domain/os/kernel .=FILE
    domain/os/initrd .=FILE
    domain/os/cmdline .=[\x20-~]*
    domain/features
    domain/features/acpi
    domain/features/apic
    domain/cpu mode=host-model|host-passthrough|custom match=exact|minimum check=none|partial|full
    domain/cpu/model fallback=allow|forbid .=[\w.-]+
    domain/cpu/topology sockets=\d+ dies=\d+ cores=\d+ threads=\d+
    domain/clock offset=utc
    domain/on_poweroff .=destroy|restart
    domain/on_reboot .=destroy|restart
    domain/on_crash .=destroy|restart
    domain/devices
    domain/devices/controller type=usb|pci|sata|scsi|virtio-serial index=\d+ model=[\w-]+
    domain/devices/disk type=file device=disk|cdrom
    domain/devices/disk/driver name=qemu type=raw|qcow2 cache=none|writethrough|writeback|directsync
    domain/devices/disk/source file=FILE
    domain/devices/disk/target dev=[a-z]+ bus=virtio|sata|scsi|ide
    domain/devices/disk/readonly
    domain/devices/interface type=network
    domain/devices/interface/source network=NETWORK
    domain/devices/interface/mac address=[\da-fA-F:]+
    domain/devices/interface/model type=virtio|e1000|e1000e|rtl8139
    domain/devices/serial type=pty
    domain/devices/serial/target port=\d+
    domain/devices/console type=pty
    domain/devices/console/target type=serial|virtio port=\d+
    domain/devices/input type=mouse|keyboard|tablet bus=ps2|usb|virtio
    domain/devices/memballoon model=none|virtio
    domain/devices/video
    domain/devices/video/model type=none|vga|virtio
    """.strip().splitlines())
}  # fmt: skip
"""The elements of a message, each with expressions for whole attributes, and `.` for its text.

Those by which libvirt runs a program or opens a socket, a device or a file of the host are missing,
but for files of one directory. Source: libvirt's reference of the domain XML.
"""

_KIB = {"KiB": 1, "MiB": 1024, "GiB": 1024**2}


def require_harmless(
    xml: str, images: str, networks: Sequence[str], most_memory: int, most_vcpus: int
) -> None:
    """Raise UnparsableError if a definition has anything but what the rules allow.

    images: directory of the files that it may name; empty for none. most_memory: KiB.
    """
    if "<!DOCTYPE" in xml:
        raise UnparsableError("xml: a document type is not accepted")
    try:
        domain = ET.fromstring(xml)  # noqa: S314 - without a document type there are no entities
    except (SyntaxError, ValueError) as error:  # ParseError is a SyntaxError
        raise UnparsableError(f"xml: {error}") from error
    values = {
        "FILE": rf"{re.escape(images.rstrip('/'))}/\w[\w.-]*" if images else "(?!)",
        "NETWORK": "|".join(map(re.escape, networks)) or "(?!)",
    }
    _require_rules(domain, domain.tag, values)
    for tag, most in (("memory", most_memory), ("vcpu", most_vcpus)):
        for each in domain.findall(tag):
            if int(each.text or "") * _KIB[each.get("unit", "KiB")] > most:
                raise UnparsableError(f"xml: {tag}: the policy allows {most}")
    # A guest can write a header of qcow2 into its raw disk, which names any file of the host.
    for disk in domain.iterfind("devices/disk"):
        driver, source = disk.find("driver"), disk.find("source")
        form = "raw" if driver is None else driver.get("type", "raw")
        if source is not None and (form == "qcow2") != source.get("file", "").endswith(".qcow2"):
            raise UnparsableError(f"xml: a disk of type {form}: only files NAME.qcow2 are qcow2")


def _require_rules(element: ET.Element, path: str, values: dict[str, str]) -> None:
    """Raise UnparsableError if the rules do not allow an element or one below it."""
    if path not in _RULES:
        raise UnparsableError(f"xml: {path}: not an element that this node accepts")
    rules, found = _RULES[path], dict(element.attrib)
    if "." in rules or (element.text or "").strip():
        found["."] = element.text or ""
    for name, value in found.items():
        rule = rules.get(name, "(?!)")
        if not re.fullmatch(values.get(rule, rule), value, re.ASCII):
            what = f"{path}: {name.replace('.', 'text')} {show_value(value)}"
            raise UnparsableError(f"xml: {what}: not accepted by this node")
    tags = [child.tag for child in element]
    for child in element:
        if path != "domain/devices" and child.tag != "boot" and tags.count(child.tag) > 1:
            raise UnparsableError(f"xml: {path}/{child.tag}: more than one")
        _require_rules(child, f"{path}/{child.tag}", values)
