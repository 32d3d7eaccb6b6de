"""Cards, as their driver and the PCI bus list them, and whether the maker's library can tell."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ccagent.config.duration import Duration
from ccagent.config.registry import GPU_VENDORS, gpu_vendor_class
from ccagent.doctor.finding import Finding
from ccagent.doctor.together import together
from ccagent.errors import CcagentError
from ccagent.machine.gpu.gpus import Gpus
from ccagent.machine.gpu.presence import find_cards, vendor_directories
from ccagent.machine.gpu.settings import GpuSettings
from ccagent.machine.interpreter import install_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccagent.doctor.demands import Site
    from ccagent.machine.node import Node

AREA = "GPUs"
SECONDS = 10.0

_VENDORS = {"nvidia": b"0x10de", "amd": b"0x1002"}
_CLASSES = (b"0x0300", b"0x0302", b"0x0380", b"0x1200")
"""VGA, 3D, other display, and processing accelerators (PCI Code and ID Assignment)."""
_PACKAGES = {"nvidia": ("pynvml", "nvidia-ml-py"), "amd": ("amdsmi", "amdsmi")}
_DEVICES = "sys/bus/pci/devices"


def subject_of(maker: str) -> str:
    """Give what findings call the cards of a maker."""
    return f"{maker} cards"


def check_gpus(site: Site) -> Iterator[Finding]:
    """Tell of each maker that is built in or looked for."""
    makers = dict.fromkeys(GPU_VENDORS)
    for settings in site.configuration.agents.values():
        if isinstance(settings, GpuSettings):
            makers |= dict.fromkeys(settings.gpu_vendors)
    tasks = [partial(_examined, site.node, maker) for maker in makers]
    for maker, outcome in zip(makers, together(tasks, SECONDS + 2), strict=True):
        if isinstance(outcome, CcagentError):
            yield judge_cards(maker, errors=[str(outcome)])
        else:
            yield outcome


def judge_cards(
    maker: str,
    *,
    driven: Sequence[str] = (),
    on_bus: Sequence[str] = (),
    told: Sequence[str] = (),
    errors: Sequence[str] = (),
    package: str = "",
) -> Finding:
    """Judge the addresses that the driver and the bus list, and the models the library tells.

    package: what has to be installed for the library, if that isn't there.
    """
    subject = subject_of(maker)
    if errors:
        found = f"{len(driven)} by the driver; {'; '.join(errors)}"
        advice = (
            "see to the library: is it of the driver's version, may this user open the device "
            "files (in a service: PrivateDevices=no and DeviceAllow=)?"
        )
        if package:
            advice = f"install its Python package: {install_command(package)}"
        return Finding(area=AREA, subject=subject, state="problem", found=found, fix=advice)
    if driven and len(told) < len(driven):
        return Finding(
            area=AREA,
            subject=subject,
            state="problem",
            found=f"{len(driven)} by the driver, {len(told)} by its library",
            fix="see the kernel's log (dmesg) for the cards that are missing",
        )
    if driven:
        models = ", ".join(dict.fromkeys(told))
        return Finding(area=AREA, subject=subject, state="good", found=f"{len(driven)}: {models}")
    if on_bus:
        return Finding(
            area=AREA,
            subject=subject,
            state="problem",
            found=f"{', '.join(on_bus)} on the PCI bus, but no driver has any",
            fix="load the maker's driver, if these cards are for jobs",
        )
    found = f"none; its Python package {package} is missing too" if package else "none"
    return Finding(area=AREA, subject=subject, state="missing", found=found)


def _examined(node: Node, maker: str) -> Finding:
    driven = find_cards(node, vendor_directories(maker))
    module, package = _PACKAGES.get(maker, ("", ""))
    lacks = package if module and find_spec(module) is None else ""
    if not driven:
        return judge_cards(maker, on_bus=_on_bus(node, maker), package=lacks)
    settings = GpuSettings(gpu_vendors=(maker,), gpu_time_limit=Duration(f"{SECONDS:g}s"))
    errors: list[str] = []
    gpus = Gpus(node, settings)
    try:
        gpus.ask("describe")
        cards = gpus.descriptions(errors)
    finally:
        gpus.close()
    told = [f"{card.model} (driver {card.driver})" if card.driver else card.model for card in cards]
    title = gpu_vendor_class(maker).title
    if not cards and not errors:
        errors = [f"{title}: it tells of none"]
    return judge_cards(maker, driven=driven, told=told, errors=errors, package=lacks)


def _on_bus(node: Node, maker: str) -> list[str]:
    """Give the addresses of cards of a maker, by vendor and class."""
    vendor = _VENDORS.get(maker)
    found: list[str] = []
    try:
        addresses = sorted(node.list(_DEVICES)) if vendor else []
    except CcagentError:
        return found
    for address in addresses:
        try:
            is_ours = node.read(f"{_DEVICES}/{address}/vendor").strip() == vendor
            if is_ours and node.read(f"{_DEVICES}/{address}/class").startswith(_CLASSES):
                found.append(address)
        except CcagentError:
            continue
    return found
