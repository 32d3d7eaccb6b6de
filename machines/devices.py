"""PCI devices of a host: given to a machine by vendor and device, and taken before it moves.

Source: libvirt's reference of the element hostdev.
"""

from __future__ import annotations

import time
from operator import methodcaller
from typing import TYPE_CHECKING

from ccagent.machine.virtual_machines import parse_host_devices, parse_pci_device
from ccagent.machines.hypervisor import HypervisorError

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from ccagent.machine.virtual_machines import PciAddress
    from ccagent.machines.hypervisor import Hypervisor

_LOOKED_EVERY = 0.1
_LIVE = 1
_PCI_DEVICES = 2
"""Flags: VIR_DOMAIN_AFFECT_LIVE and VIR_CONNECT_LIST_NODE_DEVICES_CAP_PCI_DEV."""

_HOSTDEV = (
    "<hostdev mode='subsystem' type='pci' managed='yes'><source>"
    "<address domain='{}' bus='{}' slot='{}' function='{}'/></source></hostdev>"
)


def write_pci_id(pair: tuple[int, int]) -> str:
    """Return vendor and device as lspci writes them, such as 15b3:1004."""
    return ":".join(f"{number:04x}" for number in pair)


def attach_devices(host: Hypervisor, name: str, wanted: Iterable[str]) -> None:
    """Attach free devices to a running machine, until it has one of each id.

    Raise HypervisorError if an id has none. libvirt refuses a device that another machine has.
    """
    devices = _list_devices(host)
    own = [devices.pop(each, "") for each in _list_own(host, name)]
    for each in wanted:
        if each in own:
            own.remove(each)
            continue
        reason = f"{host.name} has no such device that is free"
        for address in [place for place, found in devices.items() if found == each]:
            del devices[address]
            try:
                host.call(name, methodcaller("attachDeviceFlags", _HOSTDEV.format(*address), _LIVE))
                break
            except HypervisorError as error:
                reason = str(error)
        else:
            raise HypervisorError(f"pci-ids: {each}: {reason}")


def detach_devices(
    host: Hypervisor, name: str, allowed: Container[str], limit: float, taken: list[str]
) -> None:
    """Take the devices of these ids from a running machine, and note their ids in `taken`.

    Raise HypervisorError if the guest does not release them within `limit` seconds.
    """
    devices = _list_devices(host)
    places = [each for each in _list_own(host, name) if devices.get(each, "") in allowed]
    for place in places:
        taken.append(devices[place])
        host.call(name, methodcaller("detachDeviceFlags", _HOSTDEV.format(*place), _LIVE))
    deadline = time.monotonic() + limit
    while left := {*_list_own(host, name)}.intersection(places):
        if time.monotonic() > deadline:
            raise HypervisorError(f"pci-ids: {len(left)} devices are not released in {limit:g} s")
        time.sleep(_LOOKED_EVERY)


def _list_devices(host: Hypervisor) -> dict[PciAddress, str]:
    """Return vendor and device of all PCI devices of a host."""
    with host.use() as connection:
        devices = connection.listAllDevices(_PCI_DEVICES)
        return dict(parse_pci_device(each.XMLDesc(0)) for each in devices)


def _list_own(host: Hypervisor, name: str) -> list[PciAddress]:
    return parse_host_devices(host.call(name, lambda domain: domain.XMLDesc(0)))
