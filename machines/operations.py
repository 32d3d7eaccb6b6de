"""The work of a task on one machine of this node: start, stop, suspend, resume, repin.

A machine is started by its definition, or by one from the site's templates: a message fills in
names and sizes only.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from msgspec import structs

from ccagent.agents.fast.messages.structures import MachineOutcome
from ccagent.errors import CcagentError, NotPermittedError
from ccagent.machine.background import BackgroundCall
from ccagent.machine.cgroup.jobs import parse_machine_job
from ccagent.machine.virtual_machines import read_pid_file
from ccagent.machines.hypervisor import Hypervisor, HypervisorError, attach_devices, write_pci_id
from ccagent.service.private_files import open_private

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from xml.etree import ElementTree as ET

    from ccagent.agents.fast.messages import structures as fast
    from ccagent.machine.node import Node
    from ccagent.machines.hypervisor import MachineState
    from ccagent.machines.requests import BrokerRequests
    from ccagent.machines.settings import MigfraSettings

_LOOKED_EVERY = 0.1
_PROBED_EVERY = 0.5
_SEARCHED_FOR = 10.0
"""Seconds to ask all destinations whether a machine runs there."""

_LARGEST = 1024 * 1024
_OWN = ("name", "uuid")
"""Elements that make a machine one of its kind."""


class Phases:
    """Seconds of each phase, by the tags of existing programs: `overall`, `migrate`..."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self.durations: dict[str, float] = {}

    @contextlib.contextmanager
    def measure(self, tag: str) -> Generator[None]:
        """Add the time of the body to a phase."""
        begun = time.monotonic()
        try:
            yield
        finally:
            seconds = time.monotonic() - begun
            self.durations[tag] = self.durations.get(tag, 0.0) + seconds

    def finish(self) -> dict[str, float]:
        """Return all phases with `overall`."""
        return {"overall": time.monotonic() - self._begun} | self.durations


class Operations:
    """Works on machines of this node. Each method returns a truthful outcome and never raises."""

    def __init__(
        self,
        node: Node,
        settings: MigfraSettings,
        requests: BrokerRequests,
        open_connection: Callable[[str], Any],
    ) -> None:
        """Prepare. No connection to libvirt is opened before one is needed."""
        self.settings = settings
        self.requests = requests
        self.here = Hypervisor(settings.hypervisor, node.hostname, open_connection)
        self.destinations = {
            name: Hypervisor(uri, name, open_connection)
            for name, uri in settings.allow.destinations.items()
        }
        self._node = node

    def run(
        self,
        name: str,
        work: Callable[[Phases], str],
        *,
        measures_time: bool,
        needs: bool | None = None,
    ) -> MachineOutcome:
        """Do the work for a machine, then return its outcome with the state that is true now.

        work: returns details. needs: the machine must be active for success, or inactive.
        """
        phases = Phases()
        is_success, details = True, ""
        try:
            details = work(phases)
        except CcagentError as error:
            is_success, details = False, str(error)
        outcome = self.outcome(name, is_success=is_success, details=details, needs=needs)
        return structs.replace(outcome, durations=phases.finish() if measures_time else {})

    def outcome(
        self, name: str, *, is_success: bool, details: str = "", needs: bool | None = None
    ) -> MachineOutcome:
        """Return an outcome with the state of a machine here, as libvirt says now."""
        try:
            found = self.here.look(name)
        except HypervisorError as error:
            text = f"{details}; its state is unknown: {error}" if details else str(error)
            return MachineOutcome(name=name, is_success=False, details=text)
        is_active = found is not None and found.is_active
        if is_success and needs is not None and needs != is_active:
            is_success = False
            details = details or f"the machine is {'not ' if needs else ''}active"
        return MachineOutcome(
            name=name,
            is_success=is_success,
            details=details,
            process_id=self.find_process(name) if is_active else 0,
            host=self._node.hostname if is_active else "",
            state=found.state if found is not None else "",
        )

    def find_process(self, name: str) -> int:
        """Return the process of a machine by libvirt's pid file; 0 if it is another's."""
        return read_pid_file(self._node, self.settings.run_directory.lstrip("/"), name)

    def start(self, part: fast.MachineConfiguration) -> MachineOutcome:
        """Start a machine by its definition or a template, and wait until it is ready."""

        def work(phases: Phases) -> str:
            self._require_nowhere(part.name)
            found = self.here.look(part.name)
            if found is not None and found.is_active:
                raise HypervisorError(f"Wrong domain state: {found.state}")
            if part.template or part.xml:
                self._create(part, found)
            else:
                self.here.require(part.name)
                self.here.configure(part.name, part.memory, part.vcpus)
                self.here.call(part.name, lambda domain: domain.create())
            if part.pci_ids:
                with phases.measure("attach-pci-devs"):
                    attach_devices(self.here, part.name, map(write_pci_id, part.pci_ids))
            with phases.measure("ready"):
                self._wait_until_ready(part)
            return ""

        return self.run(part.name, work, measures_time=part.measures_time, needs=True)

    def stop(self, order: fast.MachineOrder) -> MachineOutcome:
        """Shut a machine down, or destroy it; wait until it is off, then undefine it if wanted."""

        def work(_phases: Phases) -> str:
            found = self.here.require(order.name)
            if not found.is_active or (found.state != "running" and not order.is_forced):
                raise HypervisorError(f"Wrong domain state: {found.state}")
            method = "destroy" if order.is_forced else "shutdown"
            self.here.call(order.name, methodcaller(method))
            self._wait_until_off(order.name)
            if order.is_undefined and self.here.look(order.name) is not None:
                self.here.undefine(order.name)
            return ""

        return self.run(order.name, work, measures_time=order.measures_time, needs=False)

    def change(self, state: str, method: str, order: fast.MachineOrder) -> MachineOutcome:
        """Call a method of libvirt for a machine that must be in a state: suspend or resume."""

        def work(_phases: Phases) -> str:
            found = self.here.require(order.name)
            if found.state != state:
                raise HypervisorError(f"Wrong domain state: {found.state}")
            self.here.call(order.name, methodcaller(method))
            return ""

        return self.run(order.name, work, measures_time=order.measures_time, needs=True)

    def repin(self, task: fast.RepinMachine) -> MachineOutcome:
        """Pin the virtual CPUs of a machine."""

        def work(phases: Phases) -> str:
            found = self.here.require(task.name)
            if not found.is_active:
                raise HypervisorError(f"Wrong domain state: {found.state}")
            self._require_free(task.name, task.vcpu_map)
            with phases.measure("repin"):
                self.here.pin(task.name, task.vcpu_map)
            return ""

        return self.run(task.name, work, measures_time=task.measures_time, needs=True)

    def _create(self, part: fast.MachineConfiguration, found: MachineState | None) -> None:
        xml = make_definition(self.settings.allow.templates, part)
        if part.is_transient:
            if found is not None:
                raise HypervisorError(f"operation failed: domain '{part.name}' already exists")
            with self.here.use() as connection:
                connection.createXML(xml)
        else:
            self.here.define(xml)
            self.here.call(part.name, lambda domain: domain.create())

    def _require_nowhere(self, name: str) -> None:
        """Raise HypervisorError if a machine runs on a destination: its disk would be used twice.

        Destinations that do not answer, or not in time, are skipped: they may be down for good.
        """

        def search() -> str:
            for destination in self.destinations.values():
                with contextlib.suppress(HypervisorError):
                    found = destination.look(name)
                    if found is not None and found.is_active:
                        return destination.name
            return ""

        call = BackgroundCall(search, "search of a machine")
        if call.wait(_SEARCHED_FOR) and (host := call.result()):
            raise HypervisorError(f"it runs on {host} already")

    def _require_free(self, name: str, vcpu_map: fast.VcpuMap) -> None:
        """Raise HypervisorError if a CPU belongs to a Slurm job that is not the machine's."""
        if not self.settings.spare_jobs:
            return
        from ccagent.agents.fast.bandwidth import job_cores  # seldom used, and large

        cpus = {cpu for each in vcpu_map for cpu in each}
        own = parse_machine_job(self.here.definition(name).encode())
        for job, cores in job_cores(self._node).items():
            if job != own and (not cores or cores & cpus):
                raise HypervisorError(f"vcpu-map: CPU {min(cores & cpus or cpus)} is of job {job}")

    def _wait_until_off(self, name: str) -> None:
        limit = self.settings.stop_limit.seconds
        deadline = time.monotonic() + limit
        while (found := self.here.look(name)) is not None and found.is_active:
            if time.monotonic() > deadline:
                raise HypervisorError(
                    f"Timeout while waiting for correct vm state: {found.state} after {limit:g} s"
                )
            time.sleep(_LOOKED_EVERY)

    def _wait_until_ready(self, part: fast.MachineConfiguration) -> None:
        """Wait until ssh answers. Raise HypervisorError if it does not in time, or off."""
        limit = self.settings.start_limit.seconds
        deadline = time.monotonic() + limit
        if self.settings.ready == "running" or not part.probes:
            return
        while not _has_ssh(part.name, self.settings.ready_port):
            if not self.here.require(part.name).is_active:
                raise HypervisorError("the machine stopped during its start")
            if time.monotonic() > deadline:
                text = "Timeout while trying to reach domain with SSH: running, not reachable"
                if self.settings.destroy_unready:
                    self.here.call(part.name, lambda domain: domain.destroy())
                    text = "Timeout while trying to reach domain with SSH: destroyed"
                raise HypervisorError(f"{text} after {limit:g} s")
            time.sleep(_PROBED_EVERY)


def _has_ssh(host: str, port: int) -> bool:
    """Return whether an ssh server answers on a host."""
    try:
        with socket.create_connection((host, port), timeout=2.0) as connection:
            return connection.recv(4, socket.MSG_WAITALL) == b"SSH-"
    except (OSError, UnicodeError):
        return False


def make_definition(directory: str, part: fast.MachineConfiguration) -> str:
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


def fill_template(content: bytes | str, part: fast.MachineConfiguration) -> str:
    """Return a definition with name, memory and virtual CPUs of a message.

    uuid and MAC addresses are removed: libvirt makes new ones. Raise ParseError or ValueError if
    the template is no definition of a machine.
    """
    from xml.etree import ElementTree as ET  # seldom used, and large

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
