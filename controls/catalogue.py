"""All controls of this machine, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ccagent.controls.control import NODE_DEVICE, ControlClass, DeviceType, Feature
from ccagent.errors import CcagentError, ControlError
from ccagent.log import logger

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ccagent.machine.node import Node


NO_DEVICE = "there is no device"


class ListedControl(msgspec.Struct, frozen=True):
    """One entry of the answer to `controls`."""

    category: str
    name: str
    device_type: str
    description: str
    methods: str


class Catalogue:
    """The features of all classes. Names are looked up, and never become part of a path."""

    def __init__(self, features: Iterable[Feature]) -> None:
        self._features: dict[str, Feature] = {}
        self._by_name: dict[str, list[Feature]] = {}
        for feature in features:
            control = feature.control
            if control.full_name not in self._features:
                self._features[control.full_name] = feature
                bare = () if "." in control.name else (control.name,)
                for name in (control.full_name, *bare):
                    self._by_name.setdefault(name, []).append(feature)
        self._categories = {feature.control.category for feature in self}

    def __iter__(self) -> Iterator[Feature]:
        return iter(self._features.values())

    def __len__(self) -> int:
        return len(self._features)

    def has_category(self, name: str) -> bool:
        """Return whether this machine has controls of a category."""
        return name in self._categories

    def find(self, name: str) -> Feature:
        """Return a control by `category.name` or by a unique name. Raise ControlError."""
        features = self._by_name.get(name, [])
        if not features:
            raise ControlError("there is no such control on this node")
        if len(features) > 1:
            names = ", ".join(feature.control.full_name for feature in features)
            raise ControlError(f"the name is not unique: {names}")
        return features[0]

    def listing(self) -> str:
        """Return the answer to `controls`: JSON."""
        listed: list[ListedControl] = []
        for feature in self:
            control = feature.control
            unit = f" [{control.unit}]" if control.unit else ""
            methods = "ALL" if control.is_writable else "GET"
            row = (control.category, control.name, control.device_type)
            listed.append(ListedControl(*row, f"{control.description}{unit}", methods))
        return msgspec.json.encode({"controls": listed}).decode()


def check_device(feature: Feature, device_type: DeviceType | None, number: str) -> str:
    """Return the id of the device in a request. Raise ControlError if it does not exist."""
    control = feature.control
    if device_type != control.device_type:
        raise ControlError(f"{control.full_name} is of type {control.device_type}")
    if device_type == "node":
        number = NODE_DEVICE
    device = feature.find_device(number)
    if device is None:
        raise ControlError(f"{NO_DEVICE} {control.device_type}/{number[:40]!a} with it")
    return device


def find_features(node: Node, classes: Sequence[ControlClass]) -> Iterator[Feature]:
    """Return the features of all classes. A failing class is skipped and logged."""
    for control_class in classes:
        try:
            yield from control_class.find_features(node)
        except CcagentError as error:
            logger.warning("controls %s: %s", control_class.category, error)


def standard_classes() -> list[ControlClass]:
    """Return all classes that need only the machine."""
    from ccagent.controls.cards import AmdGpu, NvmlControls
    from ccagent.controls.kernel_files import CpuFreq, OsSettings, UncoreFreq
    from ccagent.controls.processors import Hsmp, Msr, Rapl

    return [CpuFreq(), Rapl(), UncoreFreq(), Msr(), OsSettings(), NvmlControls(), AmdGpu(), Hsmp()]
