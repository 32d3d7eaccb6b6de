"""The agent `sysinfo`: an envelope that describes the node."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import Meta

from ccagent.agents.base import Agent
from ccagent.agents.gpu_settings import GpuSettings
from ccagent.agents.sysinfo.software import (
    SoftwareSettings,
    read_drawing,
    read_software,
    split_command,
)
from ccagent.config.duration import Duration
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
    from collections.abc import Iterator

    from ccagent.machine.checks import Check
    from ccagent.machine.node import Node
    from ccagent.records.message import Format


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
