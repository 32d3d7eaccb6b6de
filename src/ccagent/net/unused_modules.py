"""Modules that a library imports and does not use here: they are loaded when they are used."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType


def defer(name: str) -> None:
    """Have a module of a package loaded at the first use of one of its names."""
    if name in sys.modules:
        return
    package, _, last = name.rpartition(".")
    placeholder = ModuleType(name)

    def load(attribute: str) -> object:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        if sys.modules.get(name) is placeholder:
            del sys.modules[name]
        return getattr(import_module(name), attribute)

    vars(placeholder)["__getattr__"] = load  # PEP 562
    setattr(import_module(package), last, placeholder)
    sys.modules[name] = placeholder
