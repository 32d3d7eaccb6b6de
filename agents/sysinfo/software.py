"""Versions of software installed on the node, and drawings of its topology."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from ccagent.config.settings import Settings
from ccagent.errors import CcagentError, ProgramError, UnparsableError
from ccagent.machine.parsed import read_parsed
from ccagent.records.envelopes import SysinfoSoftwareVersion

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccagent.machine.node import Node

_LONGEST = 200
_LARGEST_FILE = 256 * 1024
_ROCM_FILE = re.compile(r"\.?version(?:-(.+))?", re.DOTALL)


def split_command(command: str) -> list[str]:
    """Split a configured command into words like a shell; empty for none.

    Raise ValueError with the reason if that is impossible.
    """
    if not command:
        return []
    if "\0" in command:
        raise ValueError(f"{command!r} can't be split into words: it holds the character NUL")
    import shlex

    try:
        return shlex.split(command)
    except ValueError as error:
        raise ValueError(f"{command!r} can't be split into words: {error}") from error


def read_drawing(
    node: Node,
    command: list[str],
    *,
    time_limit: float,
    size_limit: int,
    errors: list[CcagentError],
) -> str:
    """Run a command and return its output in base64 (RFC 4648, section 4).

    Return an empty text without command or output. Also return an empty text, and add to `errors`,
    if the program is missing, fails, exceeds `time_limit` seconds or prints more than `size_limit`
    bytes.
    """
    if not command:
        return ""
    try:
        output = node.run(command, time_limit=time_limit, output_limit=size_limit)
    except CcagentError as error:
        # A configured program should exist, so a missing one is a failure, too.
        errors.append(ProgramError(str(error)))
        return ""
    import base64

    return base64.b64encode(output).decode("ascii")


class SoftwareSettings(Settings, frozen=True):
    """One table of `software`: the source of the version of a package."""

    key: Annotated[str, Meta(description="unique key of the package", min_length=1)]
    name: Annotated[str, Meta(description="display name")] = ""
    command: Annotated[
        str, Meta(description="command that prints the version in its first non-empty line")
    ] = ""
    file: Annotated[str, Meta(description="file with the version in its first non-empty line")] = ""

    def __post_init__(self) -> None:
        if bool(self.file) == bool(split_command(self.command)):
            raise ValueError(f"{self.key!r} needs either 'command' or 'file'")


class _Component(msgspec.Struct):
    version: str
    name: str = ""


def make_version(key: str, name: str, version: str) -> SysinfoSoftwareVersion:
    """Return an entry, cut at 200 characters per field; omit an unprintable name.

    Raise UnparsableError if the key or version is empty or unprintable.
    """
    key, name, version = (text.strip()[:_LONGEST] for text in (key, name, version))
    for text in (key, version):
        if not text or not text.isprintable():
            raise UnparsableError(f"software {key[:80]!r}: not a version: {version[:80]!r}")
    return SysinfoSoftwareVersion(key=key, version=version, name=name if name.isprintable() else "")


def parse_first_line(content: bytes) -> str:
    """Return the first non-empty line, stripped; empty without one."""
    for line in content.decode("utf-8", "replace").splitlines():
        if text := line.strip():
            return text
    return ""


def parse_cuda(content: bytes) -> dict[str, msgspec.Raw]:
    """Split version.json of CUDA into components by key. Raise UnparsableError if invalid."""
    try:
        return msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    except (ValueError, RecursionError) as error:
        raise UnparsableError(f"not a JSON object: {error}") from error


def parse_component(key: str, content: msgspec.Raw) -> SysinfoSoftwareVersion:
    """Parse one component of version.json: `{"name": "CUDA SDK", "version": "12.2.20230823"}`.

    Raise UnparsableError if it is invalid.
    """
    try:
        component = msgspec.json.decode(content, type=_Component)
    except (ValueError, RecursionError) as error:
        raise UnparsableError(f"{key[:80]!r}: {error}") from error
    return make_version(key, component.name, component.version)


def parse_rocm_file_name(file: str) -> str:
    """Return the key of a file in .info of ROCm; empty if it is no version file.

    `version` is `rocm` itself, `version-hip-libraries` its component `hip-libraries`.
    """
    match = _ROCM_FILE.fullmatch(file)
    return (match[1] or "rocm") if match else ""


def read_software(
    node: Node,
    configured: Iterable[SoftwareSettings],
    *,
    cuda_root: str,
    rocm_root: str,
    time_limit: float,
    errors: list[CcagentError],
) -> list[SysinfoSoftwareVersion]:
    """Return the versions of configured packages, of CUDA and of ROCm, in this order.

    The first of equal keys counts. time_limit: seconds for each command. An unreadable version is
    omitted, with a message in `errors`.
    """
    versions: dict[str, SysinfoSoftwareVersion] = {}
    for entries in (
        _read_configured(node, configured, time_limit, errors),
        _read_cuda(node, cuda_root, errors),
        _read_rocm(node, rocm_root, errors),
    ):
        for entry in entries:
            versions.setdefault(entry.key, entry)
    return list(versions.values())


def _read_configured(
    node: Node,
    configured: Iterable[SoftwareSettings],
    time_limit: float,
    errors: list[CcagentError],
) -> Iterator[SysinfoSoftwareVersion]:
    for package in configured:
        try:
            if package.file:
                output = node.read(package.file.lstrip("/"), _LARGEST_FILE)
            else:
                command = split_command(package.command)
                output = node.run(command, time_limit=time_limit, output_limit=_LARGEST_FILE)
            yield make_version(package.key, package.name, parse_first_line(output))
        except CcagentError as error:
            errors.append(error)


def _read_cuda(
    node: Node, root: str, errors: list[CcagentError]
) -> Iterator[SysinfoSoftwareVersion]:
    if not root:
        return
    path = _below(root, "version.json")
    try:
        components = read_parsed(node, path, parse_cuda, _LARGEST_FILE)
    except CcagentError as error:
        errors.append(error)
        return
    for key, content in components.items():
        try:
            yield parse_component(key, content)
        except UnparsableError as error:
            errors.append(UnparsableError(f"/{path}: {error}"))


def _read_rocm(
    node: Node, root: str, errors: list[CcagentError]
) -> Iterator[SysinfoSoftwareVersion]:
    if not root:
        return
    directory = _below(root, ".info")
    try:
        files = sorted(node.list(directory))
    except CcagentError as error:
        errors.append(error)
        return
    for file in files:
        path = f"{directory}/{file}"
        key = parse_rocm_file_name(file)
        if not key:
            continue
        name = "ROCm" if key == "rocm" else f"ROCm {key}"
        try:
            version = read_parsed(node, path, parse_first_line, _LARGEST_FILE)
            yield make_version(key, name, version)
        except CcagentError as error:
            errors.append(error)


def _below(root: str, name: str) -> str:
    return f"{root.strip('/')}/{name}".lstrip("/")
