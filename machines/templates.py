"""Definitions of machines from the site's templates: a message fills in names and sizes only."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from ccagent.errors import NotPermittedError
from ccagent.machines.hypervisor import HypervisorError
from ccagent.service.private_files import open_private

if TYPE_CHECKING:
    from ccagent.agents.fast.messages.structures import MachineConfiguration

_LARGEST = 1024 * 1024
_OWN = ("name", "uuid")
"""Elements that make a machine one of its kind."""


def make_definition(directory: str, part: MachineConfiguration) -> str:
    """Return the definition of a machine from its template, or from a message that was checked.

    Raise HypervisorError.
    """
    place = f"template {part.template}" if part.template else "xml"
    try:
        return fill_template(part.xml or _read(directory, part.template), part)
    except (OSError, NotPermittedError, SyntaxError, ValueError) as error:  # also a ParseError
        reason = getattr(error, "strerror", None) or str(error)
        raise HypervisorError(f"{place}: {reason}") from error


def _read(directory: str, name: str) -> bytes:
    path = os.path.join(directory, f"{name}.xml")
    with open(open_private(path, os.O_RDONLY), "rb") as file:
        return file.read(_LARGEST)


def fill_template(content: bytes | str, part: MachineConfiguration) -> str:
    """Return a definition with name, memory and virtual CPUs of a message.

    uuid and MAC addresses are removed: libvirt makes new ones. Raise ParseError or ValueError if
    the template is no definition of a machine.
    """
    domain = ET.fromstring(content)  # noqa: S314 - a file of root, or checked
    if domain.tag != "domain":
        raise ValueError("not a definition of a machine")
    for tag in _OWN:
        for element in domain.findall(tag):
            domain.remove(element)
    name = ET.Element("name")
    name.text = part.name
    domain.insert(0, name)
    for interface in domain.iter("interface"):
        for address in interface.findall("mac"):
            interface.remove(address)
    if part.memory is not None:
        _replace(domain, ("memory", "currentMemory"), str(part.memory), {"unit": "KiB"})
    if part.vcpus is not None:
        _replace(domain, ("vcpu",), str(part.vcpus), {})
    return ET.tostring(domain, encoding="unicode")


def _replace(domain: ET.Element, tags: tuple[str, ...], text: str, more: dict[str, str]) -> None:
    """Replace the elements with these tags by new ones of this text."""
    for tag in tags:
        for old in domain.findall(tag):
            domain.remove(old)
        element = domain.makeelement(tag, more)
        element.text = text
        domain.append(element)
