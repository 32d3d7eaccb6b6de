"""Checks of cards: driver, PCI bus and the vendor's library must list the same cards."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ccagent.machine.checks import Check, CheckResult
from ccagent.machine.gpu.gpus import Gpus
from ccagent.machine.gpu.vendor import find_cards, gpu_vendor_class, vendor_directories
from ccagent.machine.interpreter import install_command

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ccagent.machine.node import Node

_TIME_LIMIT = 10.0
_VENDORS = {"nvidia": "0x10de", "amd": "0x1002"}
_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
"""VGA, 3D, other display, and processing accelerators (PCI Code and ID Assignment)."""
_PACKAGES = {"nvidia": ("pynvml", "nvidia-ml-py"), "amd": ("amdsmi", "amdsmi")}
_DEVICES = "sys/bus/pci/devices"


def check_vendors(node: Node, vendors: Iterable[str]) -> Iterator[Check]:
    """Yield a check for the cards of each vendor."""
    for vendor in vendors:
        find = partial(examine_cards, node, vendor)
        yield Check("GPUs", f"{vendor} cards", find, f"GPUs of {vendor}")


def examine_cards(node: Node, vendor: str) -> CheckResult:
    """Return the cards of a vendor, and whether its library reports all of them."""
    driven = find_cards(node, vendor_directories(vendor))
    module, package = _PACKAGES.get(vendor, ("", ""))
    missing = package if module and find_spec(module) is None else ""
    if not driven:
        return assess_cards(on_bus=_find_on_bus(node, vendor), package=missing)
    errors: list[str] = []
    gpus = Gpus(node, (vendor,), _TIME_LIMIT)
    try:
        gpus.ask("describe")
        cards = gpus.descriptions(errors)
    finally:
        gpus.close()
    models = [
        f"{card.model} (driver {card.driver})" if card.driver else card.model for card in cards
    ]
    if not cards and not errors:
        errors = [f"{gpu_vendor_class(vendor).title}: it reports none"]
    return assess_cards(driven=driven, reported=models, errors=errors, package=missing)


def assess_cards(
    *,
    driven: Sequence[str] = (),
    on_bus: Sequence[str] = (),
    reported: Sequence[str] = (),
    errors: Sequence[str] = (),
    package: str = "",
) -> CheckResult:
    """Return the result for the addresses that the driver and the bus list.

    reported: models by the library. package: the Python package of the library, if it is missing.
    """
    if errors:
        fix = (
            "check that the library is of the driver's version, and that this user may open the "
            "device files (in a service: PrivateDevices=no and DeviceAllow=)"
        )
        if package:
            fix = f"install its Python package: {install_command(package)}"
        return CheckResult("problem", f"{len(driven)} by the driver; {'; '.join(errors)}", fix)
    if len(reported) < len(driven):
        found = f"{len(driven)} by the driver, {len(reported)} by its library"
        return CheckResult(
            "problem", found, "see the kernel's log (dmesg) for the cards that are missing"
        )
    if driven:
        return CheckResult("good", f"{len(driven)}: {', '.join(dict.fromkeys(reported))}")
    if on_bus:
        found = f"{', '.join(on_bus)} on the PCI bus, but no driver has any"
        return CheckResult(
            "problem", found, "load the vendor's driver, if these cards are for jobs"
        )
    found = f"none; its Python package {package} is missing too" if package else "none"
    return CheckResult("missing", found)


def _find_on_bus(node: Node, name: str) -> list[str]:
    """Return the addresses of cards of a vendor, by vendor and class on the PCI bus."""
    vendor = _VENDORS.get(name)
    return [
        address
        for address in node.list_names(_DEVICES)
        if vendor is not None
        and node.read_text(f"{_DEVICES}/{address}/vendor") == vendor
        and node.read_text(f"{_DEVICES}/{address}/class").startswith(_CLASSES)
    ]
