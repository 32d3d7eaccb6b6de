"""Machines of a libvirt daemon and their PCI devices: the only file that imports libvirt.

Source: the reference of libvirt's API, libvirt-domain, and that of the element hostdev. libvirt's
errors become HypervisorError.
"""

from __future__ import annotations

import contextlib
import threading
import time
from functools import cache
from operator import methodcaller
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ccagent.errors import CcagentError
from ccagent.log import logger
from ccagent.machine.virtual_machines import parse_host_devices, parse_pci_device

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Generator, Iterable

    from ccagent.agents.fast.messages.structures import MigrationType
    from ccagent.machine.virtual_machines import PciAddress

_KEEP_ALIVE = (5, 3)
_STATES = (
    "no state", "running", "running", "paused", "in shutdown", "shut off", "crashed", "suspended",
)  # fmt: skip
"""Names of virDomainState; a blocked machine runs."""

_PAUSED = 3
_PAUSED_FOR_MIGRATION = frozenset({2, 11})
"""Reasons of a paused machine: in migration, starting up."""

_LOST = frozenset({1, 38, 39, 55, 88})
"""Error codes that may be those of a lost connection: internal, system call, RPC, invalid
operation, no connection to the client. The connection itself says whether it is lost.
"""
_NOT_FOUND = 42
_SPARE_MEMORY = 64 * 1024 * 1024
_LOOKED_EVERY = 0.1
_LIVE = 1
_PCI_DEVICES = 2
"""Flags: VIR_DOMAIN_AFFECT_LIVE and VIR_CONNECT_LIST_NODE_DEVICES_CAP_PCI_DEV."""

_HOSTDEV = (
    "<hostdev mode='subsystem' type='pci' managed='yes'><source>"
    "<address domain='{}' bus='{}' slot='{}' function='{}'/></source></hostdev>"
)


class HypervisorError(CcagentError):
    """libvirt has refused or failed. is_lost: its daemon does not answer."""

    def __init__(self, text: str, *, is_lost: bool = False) -> None:
        super().__init__(text)
        self.is_lost = is_lost


class MachineState(NamedTuple):
    """State of a machine. state: libvirt's name of it. has_job: it is migrated or saved at present.

    is_in_migration: paused by a migration. is_persistent: it has a definition that outlives it.
    """

    state: str
    is_active: bool
    is_persistent: bool
    is_in_migration: bool
    has_job: bool
    uuid: str


class MigrationWay(NamedTuple):
    """How to migrate. uri: for QEMU's data, may be empty. bandwidth: MiB/s, 0 for the default."""

    kind: MigrationType
    uri: str = ""
    bandwidth: int = 0
    is_peer_to_peer: bool = True
    is_encrypted: bool = False
    arrives_paused: bool = False


_LOADING = threading.Lock()


def _ignore(*_: object) -> None:
    """Do nothing for an error: it is raised, too."""


@cache
def _load_libvirt() -> Any:
    import libvirt

    def run() -> None:
        while True:
            libvirt.virEventRunDefaultImpl()

    cast("Any", libvirt).registerErrorHandler(_ignore, None)
    libvirt.virEventRegisterDefaultImpl()
    threading.Thread(target=run, name="libvirt events", daemon=True).start()
    return libvirt


def load_libvirt() -> Any:
    """Return the library. Its event loop runs in a thread of its own: keep-alive needs it."""
    with _LOADING:
        return _load_libvirt()


def open_connection(uri: str) -> Any:
    """Connect to a daemon. Raise libvirtError."""
    libvirt = load_libvirt()
    connection = libvirt.open(uri)
    with contextlib.suppress(libvirt.libvirtError):  # the test driver has none
        connection.setKeepAlive(*_KEEP_ALIVE)
    return connection


class Hypervisor:
    """A daemon of libvirt. It is connected at first use, and again after a loss.

    open_connection: replaced by tests that count calls. Threads may share an instance.
    """

    def __init__(
        self, uri: str, name: str, open_connection: Callable[[str], Any] = open_connection
    ) -> None:
        self.uri = uri
        self.name = name
        """The host's name in messages."""
        self._open = open_connection
        self._connection: Any = None
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the connection. The next call opens another."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()

    @contextlib.contextmanager
    def use(self) -> Generator[Any]:
        """Enter with the connection; turn libvirt's errors into HypervisorError."""
        connection = self._connect()
        try:
            yield connection
        except Exception as error:
            raise self._explain(error, connection) from error

    def _connect(self) -> Any:
        with self._lock:
            connection = self._connection
            if connection is not None:
                with contextlib.suppress(Exception):
                    if connection.isAlive():
                        return connection
                with contextlib.suppress(Exception):
                    connection.close()
                self._connection = None
            try:
                self._connection = self._open(self.uri)
            except Exception as error:
                logger.debug("migfra: %s: %s", self.uri, error)
                raise HypervisorError(
                    f"Failed to connect to libvirt of {self.name}: {error}", is_lost=True
                ) from error
            return self._connection

    def _explain(self, error: Exception, connection: Any) -> Exception:
        """Return what to raise for an exception of libvirt; others stay as they are."""
        code = _error_code(error)
        if code is None:
            return error
        is_lost = code in _LOST
        with contextlib.suppress(Exception):  # a connection that can't tell is lost
            is_lost = is_lost and not connection.isAlive()
        return HypervisorError(" ".join(str(error).split()), is_lost=is_lost)

    def look(self, name: str) -> MachineState | None:
        """Return the state of a machine; None if the daemon does not know it."""
        with self.use() as connection:
            domain = _look_up(connection, name)
            return None if domain is None else _state(domain)

    def require(self, name: str) -> MachineState:
        """Return the state of a machine. Raise HypervisorError if it does not exist."""
        found: MachineState = self.call(name, _state)
        return found

    def list_active(self) -> list[str]:
        """Return the names of all running or paused machines."""
        with self.use() as connection:
            return sorted(domain.name() for domain in connection.listAllDomains(1))

    def count_cpus(self) -> int:
        """Return the CPUs of the host."""
        with self.use() as connection:
            return int(connection.getInfo()[2])

    def require_memory(self, name: str, source: Hypervisor) -> None:
        """Raise HypervisorError unless the host has free memory for a machine of another."""
        needed = source.call(name, lambda domain: domain.maxMemory()) * 1024 + _SPARE_MEMORY
        with self.use() as connection:
            free = connection.getFreeMemory()
        if free < needed:
            raise HypervisorError(f"{self.name} has {free} B of free memory, {name} needs {needed}")

    def call(self, name: str, function: Callable[[Any], Any]) -> Any:
        """Call a function with the domain of a machine, and return its result."""
        with self.use() as connection:
            domain = _look_up(connection, name)
            if domain is None:
                raise HypervisorError(f"Domain not found: no domain with matching name '{name}'")
            return function(domain)

    def configure(self, name: str, memory: int | None, vcpus: int | None) -> None:
        """Set memory (KiB) and virtual CPUs, current and maximum, of a stored definition."""

        def change(domain: Any) -> None:
            stored, maximum = 2, 4  # VIR_DOMAIN_AFFECT_CONFIG, VIR_DOMAIN_*_MAXIMUM
            if memory is not None:
                domain.setMemoryFlags(memory, stored | maximum)
                domain.setMemoryFlags(memory, stored)
            if vcpus is not None:
                domain.setVcpusFlags(vcpus, stored | maximum)
                domain.setVcpusFlags(vcpus, stored)

        self.call(name, change)

    def define(self, xml: str) -> None:
        """Define a machine, or replace its definition."""
        with self.use() as connection:
            connection.defineXML(xml)

    def undefine(self, name: str) -> None:
        """Remove the definition of a machine."""
        self.call(name, lambda domain: domain.undefine())

    def pin(self, name: str, vcpu_map: tuple[tuple[int, ...], ...]) -> None:
        """Pin virtual CPUs to CPUs of the host. After an error the old CPUs are restored."""

        def change(domain: Any) -> None:
            count = domain.connect().getInfo()[2]
            old: Any = domain.vcpuPinInfo(0)
            done: list[int] = []
            try:
                for vcpu, cpus in enumerate(vcpu_map):
                    wanted = tuple(cpu in cpus for cpu in range(max(count, max(cpus) + 1)))
                    domain.pinVcpu(vcpu, wanted)
                    done.append(vcpu)
            except Exception:
                for vcpu in done:
                    with contextlib.suppress(Exception):
                        domain.pinVcpu(vcpu, tuple(old[vcpu]))
                raise

        self.call(name, change)

    def read_pins(self, name: str) -> list[frozenset[int]]:
        """Return the CPUs of each virtual CPU."""
        pins = self.call(name, lambda domain: domain.vcpuPinInfo(0))
        return [frozenset(cpu for cpu, is_set in enumerate(each) if is_set) for each in pins]

    def definition(self, name: str) -> str:
        """Return the stored definition of a machine, for another host."""
        flags = 1 | 2 | 8  # SECURE, INACTIVE, MIGRATABLE
        return str(self.call(name, lambda domain: domain.XMLDesc(flags)))

    def migrate(self, name: str, destination: Hypervisor, way: MigrationWay) -> None:
        """Migrate a machine, and return when libvirt has finished. Raise HypervisorError."""
        libvirt = load_libvirt()
        flags = {
            "live": libvirt.VIR_MIGRATE_ABORT_ON_ERROR | libvirt.VIR_MIGRATE_LIVE,
            "warm": libvirt.VIR_MIGRATE_ABORT_ON_ERROR,
            "offline": libvirt.VIR_MIGRATE_OFFLINE,
        }[way.kind]
        if self.require(name).is_persistent:
            flags |= libvirt.VIR_MIGRATE_PERSIST_DEST | libvirt.VIR_MIGRATE_UNDEFINE_SOURCE
        parameters: dict[str, Any] = {}
        if way.kind != "offline":
            flags |= libvirt.VIR_MIGRATE_PAUSED * way.arrives_paused
            flags |= libvirt.VIR_MIGRATE_TLS * way.is_encrypted
            if way.uri:
                parameters[libvirt.VIR_MIGRATE_PARAM_URI] = way.uri
            if way.bandwidth:
                parameters[libvirt.VIR_MIGRATE_PARAM_BANDWIDTH] = way.bandwidth
        if way.is_peer_to_peer:
            flags |= libvirt.VIR_MIGRATE_PEER2PEER
            self.call(name, lambda each: each.migrateToURI3(destination.uri, parameters, flags))
        else:
            with destination.use() as other:
                self.call(name, lambda each: each.migrate3(other, parameters, flags))

    def abort(self, name: str) -> None:
        """Abort the migration of a machine, if one runs."""
        with contextlib.suppress(HypervisorError):
            self.call(name, lambda domain: domain.abortJob())

    def statistics(self, name: str) -> dict[str, float]:
        """Return the figures of a machine's last migration: s by phase, and bytes."""
        try:
            found = self.call(name, lambda domain: domain.jobStats(1))  # COMPLETED
        except HypervisorError:
            return {}
        downtime = found.get("downtime", 0) / 1000
        return {
            "downtime": downtime,
            "precopy": max(0.0, found.get("time_elapsed", 0) / 1000 - downtime),
            "transferred": float(found.get("data_processed", 0)),
        }


def _error_code(error: Exception) -> int | None:
    """Return the code of an exception of libvirt; None for another exception."""
    code = getattr(error, "get_error_code", None)
    return None if code is None else int(code())


def _look_up(connection: Any, name: str) -> Any:
    try:
        return connection.lookupByName(name)
    except Exception as error:
        if _error_code(error) == _NOT_FOUND:
            return None
        raise


def _state(domain: Any) -> MachineState:
    number, reason = domain.state()
    is_active = bool(domain.isActive())
    try:
        has_job = is_active and domain.jobInfo()[0] != 0
    except Exception as error:
        if _error_code(error) is None:
            raise
        has_job = False
    return MachineState(
        state=_STATES[number] if 0 <= number < len(_STATES) else str(number),
        is_active=is_active,
        is_persistent=bool(domain.isPersistent()),
        is_in_migration=number == _PAUSED and reason in _PAUSED_FOR_MIGRATION,
        has_job=has_job,
        uuid=domain.UUIDString(),
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
