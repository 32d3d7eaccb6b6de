"""PCI devices of the host by vendor and device: before a migration, after it, and by policy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from ccagent.agents.fast.messages.structures import (
    MachineConfiguration,
    MachineOutcome,
    MigrateMachine,
    MigratingMachine,
)
from ccagent.machine.virtual_machines import parse_host_devices, parse_pci_device
from ccagent.machines.hypervisor import (
    Hypervisor,
    HypervisorError,
    MachineState,
    MigrationWay,
    attach_devices,
    detach_devices,
)
from ccagent.machines.migration import MachineMigration
from ccagent.machines.policy import MachinePolicy
from ccagent.machines.settings import AllowMachines, MigfraSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

# As `virsh nodedev-dumpxml` of libvirt 9.0 writes it.
DEVICE = """<device>
  <name>pci_0000_03_{slot:02x}_1</name>
  <path>/sys/devices/pci0000:00/0000:03:{slot:02x}.1</path>
  <capability type='pci'>
    <class>0x020000</class>
    <domain>0</domain>
    <bus>3</bus>
    <slot>{slot}</slot>
    <function>1</function>
    <product id='{product}'>MT27500</product>
    <vendor id='0x15b3'>Mellanox Technologies</vendor>
    <iommuGroup number='1'><address domain='0x0000' bus='0x03' slot='0x10' function='0x1'/>
    </iommuGroup>
  </capability>
</device>"""
ID = "15b3:1004"


class RecordedHost:
    """A connection and its one machine: devices by slot, those in use, and the calls."""

    def __init__(self, slots: dict[int, str], *, used: tuple[int, ...] = ()) -> None:
        self.slots, self.used, self.own = slots, used, list[int]()
        self.calls: list[str] = []
        self.releases = True
        self.host = Hypervisor("test", "c1", lambda _uri: self)

    def isAlive(self) -> bool:  # noqa: N802 - a name of libvirt
        return True

    def lookupByName(self, _name: str) -> RecordedHost:  # noqa: N802 - a name of libvirt
        return self

    def listAllDevices(self, flags: int) -> list[Any]:  # noqa: N802 - a name of libvirt
        assert flags == 2
        return [NodeDevice(DEVICE.format(slot=s, product=p)) for s, p in self.slots.items()]

    def XMLDesc(self, _flags: int) -> str:  # noqa: N802 - a name of libvirt
        parts = [
            "<hostdev mode='subsystem' type='pci' managed='yes'><driver name='vfio'/><source>"
            f"<address domain='0x0000' bus='0x03' slot='{slot:#04x}' function='0x1'/></source>"
            "<address type='pci' domain='0x0000' bus='0x00' slot='0x05' function='0x0'/></hostdev>"
            for slot in self.own
        ]
        return f"<domain><devices>{''.join(parts)}</devices></domain>"

    def attachDeviceFlags(self, xml: str, flags: int) -> None:  # noqa: N802 - a name of libvirt
        (slot,) = [place[2] for place in parse_host_devices(_domain(xml))]
        assert flags == 1
        self.calls.append(f"attach {slot}")
        if slot in self.used:
            raise FakeError("device is in use by driver QEMU")
        self.own.append(slot)

    def jobStats(self, _flags: int) -> dict[str, int]:  # noqa: N802 - a name of libvirt
        return {}

    def detachDeviceFlags(self, xml: str, flags: int) -> None:  # noqa: N802 - a name of libvirt
        (slot,) = [place[2] for place in parse_host_devices(_domain(xml))]
        assert flags == 1
        self.calls.append(f"detach {slot}")
        if self.releases:
            self.own.remove(slot)


class NodeDevice:
    """A device in libvirt's list."""

    def __init__(self, xml: str) -> None:
        self._xml = xml

    def XMLDesc(self, _flags: int) -> str:  # noqa: N802 - a name of libvirt
        return self._xml


class FakeError(Exception):
    """An exception of libvirt."""

    def get_error_code(self) -> int:
        return 67


def _domain(hostdev: str) -> str:
    return f"<domain><devices>{hostdev}</devices></domain>"


def test_addresses_and_ids_are_read() -> None:
    assert parse_pci_device(DEVICE.format(slot=16, product="0x1004")) == ((0, 3, 16, 1), ID)
    assert parse_pci_device("<device/>") == ((0, 0, 0, 0), "0000:0000")


def test_a_device_in_use_is_passed_over() -> None:
    there = RecordedHost({16: "0x1004", 17: "0x1004", 18: "0x1003"}, used=(16,))
    attach_devices(there.host, "vm-1", [ID])
    assert there.calls == ["attach 16", "attach 17"]
    with pytest.raises(HypervisorError, match="15b3:1003: c1 has no such device"):
        attach_devices(there.host, "vm-1", ["15b3:1003", "15b3:1003"])
    assert there.own == [17, 18]


def test_devices_are_taken_and_given_on_the_other_host() -> None:
    here = RecordedHost({16: "0x1004", 17: "0x1004", 18: "0x1003"})
    there = RecordedHost({1: "0x1004", 2: "0x1004"})
    here.own = [16, 17, 18]
    taken: list[str] = []
    detach_devices(here.host, "vm-1", (ID,), 60.0, taken)
    assert (taken, here.own) == ([ID, ID], [18])  # the policy does not name the other one
    attach_devices(there.host, "vm-1", taken)
    assert there.own == [1, 2]


def test_a_guest_that_releases_nothing_keeps_its_device() -> None:
    here = RecordedHost({16: "0x1004"})
    here.own, here.releases = [16], False
    taken: list[str] = []
    with pytest.raises(HypervisorError, match="1 devices are not released in 0 s"):
        detach_devices(here.host, "vm-1", (ID,), 0.0, taken)
    attach_devices(here.host, "vm-1", taken)  # it still has what it would get
    assert here.calls == ["detach 16"]


class MovedMachine(Hypervisor):
    """A daemon with or without the machine. Its migration fails with `failure`, if any."""

    def __init__(
        self, recorded: RecordedHost, name: str, *, has_it: bool, failures: Sequence[str] = ()
    ) -> None:
        super().__init__("test", name, lambda _uri: recorded)
        self.recorded, self.has_it, self.failures = recorded, has_it, [*failures]

    def look(self, name: str) -> MachineState | None:
        state = MachineState("running", True, False, False, False, "1")
        return state if self.has_it else None

    def require(self, name: str) -> MachineState:
        return cast("MachineState", self.look(name))

    def migrate(self, name: str, destination: Hypervisor, way: MigrationWay) -> None:
        assert (self.recorded.own, name, way.kind) == ([], "vm-1", "live")
        if self.failures:
            raise HypervisorError(self.failures.pop())
        self.has_it, cast("MovedMachine", destination).has_it = False, True


NO_DEVICES: dict[int, str] = {}


def locate(_host: str, _name: str) -> int:
    return 77


def migrate(
    first: RecordedHost, second: RecordedHost, failures: Sequence[str] = (), retries: int = 0
) -> MachineOutcome:
    allow = AllowMachines(destinations={"c2": "test:///c2"}, pci_ids=(ID,))
    operations = SimpleNamespace(
        here=MovedMachine(first, "c1", has_it=True, failures=failures),
        destinations={"c2": MovedMachine(second, "c2", has_it=False)},
        settings=MigfraSettings(url="mqtt://h", allow=allow),
        requests=SimpleNamespace(locate=locate),
        find_process={"vm-1": 66}.get,
    )
    machine = MigratingMachine(name="vm-1")
    task = MigrateMachine(
        machine=machine,
        destination="c2",
        migration_type="live",
        retries=retries,
        measures_time=True,
    )
    return MachineMigration(cast("Any", operations), task, machine, "c2").run()


@pytest.mark.parametrize(
    ("failures", "there", "process", "details", "own"),
    [
        ((), {7: "0x1004"}, 77, "1", "[] [7]"),
        ((), NO_DEVICES, 77, "1; moved; re-attach failed: pci-ids: 15b3:1004: c2 ", "[] []"),
        (("no route",), {7: "0x1004"}, 66, "no route", "[16] []"),
    ],
    ids=["moved", "none there", "failed"],
)
def test_devices_come_off_before_a_migration_and_on_after_it(
    failures: tuple[str, ...], there: dict[int, str], process: int, details: str, own: str
) -> None:
    first, second = RecordedHost({16: "0x1004"}), RecordedHost(there)
    first.own = [16]
    outcome = migrate(first, second, failures)
    assert (outcome.is_success, outcome.process_id) == (process == 77, process)
    assert outcome.details.startswith(details)
    assert f"{first.own} {second.own}" == own
    assert {"detach-pci-devs", "reattach-pci-devs"} <= outcome.durations.keys()


@pytest.mark.parametrize(("retries", "is_moved"), [(2, True), (1, False)])
def test_a_migration_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, retries: int, is_moved: bool
) -> None:
    monkeypatch.setattr("ccagent.machines.migration._AGAIN_AFTER", 0.0)
    outcome = migrate(RecordedHost({}), RecordedHost({}), ("one", "two"), retries)
    assert (outcome.is_success, outcome.details) == (is_moved, "3" if is_moved else "one")
    assert outcome.host == ("c2" if is_moved else "c1")


def test_the_policy_names_devices() -> None:
    settings = MigfraSettings(
        url="mqtt://h", allow=AllowMachines(machines=("vm-1",), pci_ids=(ID,))
    )
    policy = MachinePolicy(settings)
    allowed = MachineConfiguration(name="vm-1", pci_ids=((0x15B3, 0x1004),))
    other = MachineConfiguration(name="vm-1", pci_ids=((0x15B3, 0x1003),))
    assert policy.find_part_refusal(allowed) == ""
    assert policy.find_part_refusal(other) == "pci-ids: 15b3:1003: not in the policy"
