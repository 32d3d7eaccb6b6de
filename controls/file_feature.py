"""Controls in files of the kernel with one value each."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccagent.controls.control import NO_LIMITS, Control, Feature, Limits, real_text
from ccagent.errors import CcagentError, NotHereError, UnparsableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ccagent.machine.node import Node

_INTEGER = re.compile(rb"-?[0-9]{1,20}")
_BRACKETS = re.compile(r"\[([^\]]*)\]")


class FileFeature(Feature):
    """A control with one file `DIRECTORY/FILE` per device.

    directories: by device id, from the machine's list of devices. scale: units of the file per unit
    of the control. find_limits: called with the directory of a device.
    """

    def __init__(
        self,
        node: Node,
        control: Control,
        directories: Mapping[str, str],
        file: str,
        *,
        scale: int = 1,
        tolerance: float = 0.0,
        find_limits: Callable[[str], Limits] | None = None,
    ) -> None:
        self.control = control
        self.tolerance = tolerance
        self._node = node
        self._directories = directories
        self._file = file
        self._scale = scale
        self._find_limits = find_limits

    @property
    def devices(self) -> Sequence[str]:
        """The ids of the devices."""
        return list(self._directories)

    def find_device(self, number: str) -> str | None:
        """Return the id of a device from the tag `type-id`; None for an unknown device."""
        return number if number in self._directories else None

    def read(self, device: str) -> str:
        """Return the value in the file. Raise CcagentError if it can't be read."""
        path = self._path(device)
        return self._parse(self._node.read_single(path), path)

    def write(self, device: str, text: str) -> None:
        """Write a value to the file. Raise CcagentError if that fails."""
        self._node.write_file(self._path(device), self._format(text))

    def limits(self, device: str) -> Limits:
        """Return the machine's current limits. Raise CcagentError."""
        if self._find_limits is None:
            return NO_LIMITS
        return self._find_limits(self._directories[device])

    def resource(self, device: str) -> str:
        """Return the path of the file without links: cpus share cpufreq policies through links."""
        return self._node.resolve(self._path(device))

    def _path(self, device: str) -> str:
        return f"{self._directories[device]}/{self._file}"

    def _parse(self, content: bytes, path: str) -> str:
        text = content.strip()
        if self.control.kind in {"integer", "real"}:
            if not _INTEGER.fullmatch(text):
                raise UnparsableError(f"/{path}: not a whole number: {text[:40]!r}")
            number = int(text)
            if self.control.kind == "integer":
                return str(number // self._scale)
            return real_text(number / self._scale)
        return text.decode("utf-8", "replace")

    def _format(self, text: str) -> bytes:
        match self.control.kind:
            case "integer":
                return str(int(text) * self._scale).encode()
            case "real":
                return str(round(float(text) * self._scale)).encode()
            case _:
                return text.encode()


class InvertedFeature(FileFeature):
    """A boolean with an inverted file: no_turbo."""

    def _parse(self, content: bytes, path: str) -> str:
        return _inverted(super()._parse(content, path), path)

    def _format(self, text: str) -> bytes:
        return _inverted(text, "").encode()


class BracketedFeature(FileFeature):
    """A file with all choices, and the current one in brackets: `always [madvise] never`.

    The choices in the file are the limits.
    """

    def limits(self, device: str) -> Limits:
        """Return the choices. Raise CcagentError."""
        text = self._node.read_single(self._path(device)).decode("utf-8", "replace")
        return Limits(choices=tuple(text.replace("[", "").replace("]", "").split()))

    def _parse(self, content: bytes, path: str) -> str:
        found = _BRACKETS.search(content.decode("utf-8", "replace"))
        if found is None:
            raise UnparsableError(f"/{path}: no choice in brackets: {content[:40]!r}")
        return found[1]


def read_integer(node: Node, path: str) -> int | None:
    """Return the whole number in a file; None without the file. Raise CcagentError."""
    try:
        text = node.read_single(path).strip()
    except NotHereError:
        return None
    return int(text) if _INTEGER.fullmatch(text) else None


def read_word(node: Node, path: str) -> str:
    """Return the short text in a file; empty if it can't be read."""
    try:
        return node.read_single(path).decode("utf-8", "replace").strip()
    except CcagentError:
        return ""


def list_names(node: Node, path: str, form: re.Pattern[str]) -> list[re.Match[str]]:
    """Return the names in a directory that match a pattern, in natural order; none without it.

    Only these names of the machine become part of a path.
    """
    try:
        names = node.list(path)
    except CcagentError:
        return []
    found = [match for name in names if (match := form.fullmatch(name))]
    return sorted(found, key=lambda match: [int(n) for n in re.findall(r"[0-9]+", match[0])])


def _inverted(text: str, path: str) -> str:
    if text not in {"0", "1"}:
        raise UnparsableError(f"/{path}: neither 0 nor 1: {text[:40]!r}")
    return "1" if text == "0" else "0"
