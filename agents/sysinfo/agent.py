"""The agent `sysinfo`: an envelope that describes the node, its topology and its software."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec
from msgspec import Meta

from ccagent.agents.base import Agent, GpuSettings
from ccagent.config.duration import Duration
from ccagent.config.settings import Settings
from ccagent.errors import CcagentError, NotHereError, ProgramError, UnparsableError, VanishedError
from ccagent.log import DEBUG, WARNING, logger
from ccagent.machine.clock import timestamp
from ccagent.machine.cpus import Cpus, read_cpus, read_model, read_numa
from ccagent.machine.gpu.vendor import is_any_present
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.system import parse_meminfo
from ccagent.records.envelopes import (
    SysinfoAttributes,
    SysinfoData,
    SysinfoEnvelope,
    SysinfoGpuCard,
    SysinfoSoftwareVersion,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccagent.machine.checks import Check
    from ccagent.machine.node import Node
    from ccagent.records.message import Format

_LONGEST_TEXT = 200
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


class SysinfoSettings(GpuSettings, frozen=True, kw_only=True):
    """The keys of the table `[agents.sysinfo]`."""

    on_startup: Annotated[bool, Meta(description="also sample when the daemon starts")] = True
    topo_svg_command: Annotated[
        str,
        Meta(
            description="prints the topology as SVG, such as 'lstopo-no-graphics --of svg'; "
            "split into words, but no shell; empty: none"
        ),
    ] = ""
    topo_text_command: Annotated[
        str,
        Meta(
            description="prints the topology as text, such as 'lstopo-no-graphics --of console'; "
            "split into words, but no shell; empty: none"
        ),
    ] = ""
    topo_time_limit: Annotated[
        Duration, Meta(description="time after which a topology command is stopped")
    ] = Duration("10s")
    topo_size_limit: Annotated[
        int, Meta(description="maximum output of a topology command in bytes", ge=1)
    ] = 2 * 1024 * 1024
    software: Annotated[
        tuple[SoftwareSettings, ...],
        Meta(
            description="packages with versions to send with extras = ['software']: tables "
            "[[agents.sysinfo.software]] with key, name, and command or file"
        ),
    ] = ()
    cuda_root: Annotated[
        str, Meta(description="directory of CUDA, with version.json; empty: none")
    ] = "/usr/local/cuda"
    rocm_root: Annotated[
        str, Meta(description="directory of ROCm, with .info/version; empty: none")
    ] = "/opt/rocm"
    software_time_limit: Annotated[
        Duration, Meta(description="time after which a command of a software table is stopped")
    ] = Duration("5s")

    def __post_init__(self) -> None:
        GpuSettings.__post_init__(self)
        for key, command in (
            ("topo-svg-command", self.topo_svg_command),
            ("topo-text-command", self.topo_text_command),
        ):
            try:
                split_command(command)
            except ValueError as error:
                raise ValueError(f"{key}: {error}") from error


class SysinfoAgent(Agent[SysinfoSettings]):
    """Describes the node: hardware, topology and, on demand, software."""

    name = "sysinfo"
    formats: ClassVar[frozenset[Format]] = frozenset({"sonar"})
    extras: ClassVar[frozenset[str]] = frozenset({"attrs", "format", "software"})
    Settings = SysinfoSettings

    def checks(self, node: Node) -> Iterator[Check]:
        """Yield the checks of the files, cards and programs that the settings name."""
        from ccagent.machine.checks import require_proc
        from ccagent.machine.requirements import check_vendors, require_program

        settings = self.settings
        yield require_proc(node, "memory of the node")
        yield from check_vendors(node, settings.gpu_vendors)
        commands = [
            (settings.topo_svg_command, "the topology as a picture"),
            (settings.topo_text_command, "the topology as text"),
        ]
        if "software" in settings.extras:
            commands += [
                (package.command, f"the version of {package.key}") for package in settings.software
            ]
        for command, purpose in commands:
            if words := split_command(command):
                yield require_program(node, words[0], purpose)
        yield require_program(node, "lstopo-no-graphics")

    def sample(self, node: Node) -> Iterator[SysinfoEnvelope]:
        """Read the machine and yield one envelope; unreadable parts are logged and omitted."""
        errors: list[CcagentError] = []
        attributes = self._describe(node, errors)
        for error in errors:
            absent = isinstance(error, NotHereError | VanishedError)
            logger.log(DEBUG if absent else WARNING, "%s: %s", self.name, error)
        yield SysinfoEnvelope(
            meta=self.metadata(), data=SysinfoData(type="sysinfo", attributes=attributes)
        )

    def _describe(self, node: Node, errors: list[CcagentError]) -> SysinfoAttributes:
        settings = self.settings
        time = timestamp(node.clock.time())
        os_name, os_release, architecture = read_system_name(node)
        number = os.cpu_count() if node.is_live else 1
        cpus = read_cpus(node, errors) or Cpus(1, number or 1, 1)
        numa = read_numa(node, errors)
        drawings = [
            read_drawing(
                node,
                split_command(command),
                time_limit=settings.topo_time_limit.seconds,
                size_limit=settings.topo_size_limit,
                errors=errors,
            )
            for command in (settings.topo_svg_command, settings.topo_text_command)
        ]
        return SysinfoAttributes(
            time=time,
            cluster=node.cluster,
            node=node.hostname,
            os_name=os_name,
            os_release=os_release,
            architecture=architecture,
            sockets=cpus.sockets,
            cores_per_socket=cpus.cores_per_socket,
            threads_per_core=cpus.threads_per_core,
            cpu_model=read_model(node, errors) or "unknown",
            memory=read_memory(node, errors),
            numa_nodes=numa.nodes,
            distances=numa.distances,
            topo_svg=drawings[0],
            topo_text=drawings[1],
            cards=self._cards(node, errors),
            software=self._software(node, errors),
        )

    def _cards(self, node: Node, errors: list[CcagentError]) -> list[SysinfoGpuCard]:
        """Describe the GPUs. Close their libraries afterwards: the next sample is hours away."""
        if not is_any_present(node, self.settings.gpu_vendors):
            return []
        gpus = self.settings.make_gpus(node)
        problems: list[str] = []
        try:
            gpus.ask("describe")
            return gpus.descriptions(problems)
        finally:
            gpus.close()
            errors += [ProgramError(problem) for problem in problems]

    def _software(self, node: Node, errors: list[CcagentError]) -> list[SysinfoSoftwareVersion]:
        settings = self.settings
        if "software" not in settings.extras:
            return []
        return read_software(
            node,
            settings.software,
            cuda_root=settings.cuda_root,
            rocm_root=settings.rocm_root,
            time_limit=settings.software_time_limit.seconds,
            errors=errors,
        )


def read_system_name(node: Node) -> tuple[str, str, str]:
    """Return sysname, release and machine of uname(2), of a recording from /proc/sys/kernel.

    Unknown ones are `unknown`.
    """
    if node.is_live:
        system = os.uname()
        return system.sysname, system.release, system.machine
    name, release, machine = (
        node.read_text(f"proc/sys/kernel/{file}") or "unknown"
        for file in ("ostype", "osrelease", "arch")
    )
    return name, release, machine


def read_memory(node: Node, errors: list[CcagentError]) -> int:
    """Return the memory in KB, never 0: MemTotal of /proc/meminfo, else from the C library."""
    try:
        return read_parsed(node, "proc/meminfo", _total_memory)
    except CcagentError as error:
        errors.append(error)
    pages = os.sysconf("SC_PHYS_PAGES") if node.is_live else 0
    return max(1, pages * node.page_size // 1024)


def _total_memory(content: bytes) -> int:
    total = parse_meminfo(content).get("MemTotal", 0)
    if not total:
        raise UnparsableError("no MemTotal")
    return total


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


def make_version(key: str, name: str, version: str) -> SysinfoSoftwareVersion:
    """Return an entry, cut at 200 characters per field; omit an unprintable name.

    Raise UnparsableError if the key or version is empty or unprintable.
    """
    key, name, version = (text.strip()[:_LONGEST_TEXT] for text in (key, name, version))
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


class _Component(msgspec.Struct):
    version: str
    name: str = ""
