"""Tasks and results of the migration framework, by a scheduler written from the specification."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion

from ccagent.machine.virtual_machines import parse_pci_device
from tests.support.effort import IS_NIGHTLY
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.machines.conftest import MachineSite

LIVE, WARM = "live", "warm"


@pytest.fixture
def site(machine_site: MachineSite) -> Iterator[MachineSite]:
    yield machine_site
    for name in {name for host in machine_site.libvirt.hosts for name in host.machines()}:
        machine_site.remove(name)


def _part(result: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [each for each in result["list"] if each["vm-name"] == name]
    part: dict[str, Any] = found
    return part


def test_a_machine_is_started_by_name_and_stopped(site: MachineSite) -> None:
    site.first.virsh("define", str(site.libvirt.definition("vm-1")))
    started = site.scheduler.ask(
        "s1", "start vm", vm_configurations=[{"vm-name": "vm-1", "memory": 16384, "vcpus": 2}]
    )
    assert (started["result"], started["scheduler"]) == ("vm started", "s1")
    part = _part(started, "vm-1")
    assert (part["status"], part["state"], part["host"]) == ("success", "running", "s1")
    assert part["process-id"] == site.first.process_of("vm-1")
    assert "16384 KiB" in site.first.virsh("dominfo", "vm-1")
    site.libvirt.lives("vm-1")
    again = site.scheduler.ask("s1", "start vm", vm_configurations=[{"vm-name": "vm-1"}])
    assert _part(again, "vm-1")["details"] == "Wrong domain state: running"
    stopped = site.scheduler.ask("s1", "stop vm", list=[{"vm-name": "vm-1", "undefine": True}])
    assert stopped["result"] == "vm stopped"
    assert _part(stopped, "vm-1") == {"vm-name": "vm-1", "status": "success"}
    assert site.libvirt.where("vm-1") == []


def test_a_machine_that_runs_elsewhere_is_not_started(site: MachineSite) -> None:
    site.first.virsh("define", str(site.libvirt.definition("vm-1")))
    site.second.virsh("create", str(site.libvirt.definition("vm-1")))
    result = site.scheduler.ask("s1", "start vm", vm_configurations=[{"vm-name": "vm-1"}])
    assert _part(result, "vm-1")["details"] == "it runs on s2 already"
    assert site.first.machines()["vm-1"] == "shut off"
    moved = site.scheduler.answer(
        site.scheduler.migrate("s1", "vm-1", "s2", migration_type="offline")
    )
    assert "is on s2 already" in moved["details"]
    assert site.libvirt.where("vm-1") == [("s1", "shut off"), ("s2", "running")]


def test_a_machine_that_ignores_a_shutdown_is_an_error(site: MachineSite) -> None:
    site.run("vm-1", guest="deaf")
    part = _part(site.scheduler.ask("s1", "stop vm", list=[{"vm-name": "vm-1"}]), "vm-1")
    assert (part["status"], part["state"], part["host"]) == ("error", "running", "s1")
    assert "Timeout while waiting for correct vm state" in part["details"]
    forced = site.scheduler.ask("s1", "stop vm", list=[{"vm-name": "vm-1", "force": True}])
    assert _part(forced, "vm-1")["state"] == "shut off"


def test_a_transient_machine_from_a_template(site: MachineSite) -> None:
    site.libvirt.definition("template")
    wanted = {"vm-name": "vm-7", "template": "template", "transient": True, "memory": 12288}
    site.libvirt.ticks_file("vm-7").touch()
    part = _part(site.scheduler.ask("s1", "start vm", vm_configurations=[wanted]), "vm-7")
    assert (part["status"], part["state"]) == ("success", "running")
    assert "Persistent:     no" in site.first.virsh("dominfo", "vm-7")
    stop = {"vm-name": "vm-7", "force": True, "undefine": True}
    stopped = site.scheduler.ask("s1", "stop vm", list=[stop])
    assert _part(stopped, "vm-7") == {"vm-name": "vm-7", "status": "success"}


DEFINITION = """<domain type='qemu'><name>vm-8</name><memory unit='MiB'>8</memory>
<vcpu>1</vcpu><os><type arch='x86_64' machine='pc'>hvm</type><kernel>{kernel}</kernel></os>
<devices>{devices}<controller type='usb' model='none'/><serial type='pty'/>
<memballoon model='none'/></devices></domain>"""


def test_a_machine_starts_by_a_harmless_definition_only(site: MachineSite) -> None:
    guest = str(site.libvirt.guests["guest"])
    program, trace = site.libvirt.directory / "program", site.libvirt.directory / "trace"
    program.write_text(f"#!/bin/sh\ntouch {trace}\n")
    program.chmod(0o755)
    for kernel, devices, reason in (
        (guest, f"<emulator>{program}</emulator>", "xml: domain/devices/emulator: not an element"),
        ("/etc/passwd", "", "xml: domain/os/kernel: text '/etc/passwd': not accepted"),
    ):
        xml = DEFINITION.format(kernel=kernel, devices=devices)
        result = site.scheduler.ask("s1", "start vm", vm_configurations=[{"xml": xml}])
        part = _part(result, "vm-8")
        assert part["status"] == "error"
        assert reason in part["details"]
    assert site.libvirt.where("vm-8") == []
    assert not trace.exists()
    xml = DEFINITION.format(kernel=guest, devices="")
    wanted = {"xml": xml, "transient": True, "vcpus": 2}
    part = _part(site.scheduler.ask("s1", "start vm", vm_configurations=[wanted]), "vm-8")
    assert (part["status"], part["state"], part["host"]) == ("success", "running", "s1"), part
    assert part["process-id"] == site.first.process_of("vm-8")
    assert "CPU(s):         2" in site.first.virsh("dominfo", "vm-8")


def test_a_host_without_the_device_says_so(site: MachineSite) -> None:
    site.first.virsh("define", str(site.libvirt.definition("vm-1")))
    device = {"vm-name": "vm-1", "pci-ids": [{"vendor": 0xFFFF, "device": 1}]}
    part = _part(site.scheduler.ask("s1", "start vm", vm_configurations=[device]), "vm-1")
    assert (part["status"], part["state"], part["host"]) == ("error", "running", "s1")
    assert part["details"] == "pci-ids: ffff:0001: s1 has no such device that is free"


def test_addresses_of_devices_are_those_of_the_kernel(site: MachineSite) -> None:
    names = site.first.virsh("nodedev-list", "--cap", "pci").split()
    assert names
    for name in names:
        address, identity = parse_pci_device(site.first.virsh("nodedev-dumpxml", name))
        domain, bus, slot, function = address
        device = Path(f"/sys/bus/pci/devices/{domain:04x}:{bus:02x}:{slot:02x}.{function}")
        files = (device / file for file in ("vendor", "device"))
        assert identity == ":".join(file.read_text().strip().removeprefix("0x") for file in files)


def test_a_machine_is_suspended_and_resumed(site: MachineSite) -> None:
    site.run("vm-1")
    orders = [{"vm-name": "vm-1"}, {"vm-name": "vm-none"}]
    suspended = site.scheduler.ask("s1", "suspend vm", list=orders)
    assert suspended["result"] == "vm suspended"
    assert _part(suspended, "vm-1")["state"] == "paused"
    assert _part(suspended, "vm-none")["details"] == (
        "Domain not found: no domain with matching name 'vm-none'"
    )
    resumed = site.scheduler.ask("s1", "resume vm", list=[{"vm-name": "vm-1"}])
    assert resumed["result"] == "vm resumed"
    assert _part(resumed, "vm-1")["state"] == "running"
    site.libvirt.lives("vm-1")


def test_a_machine_is_repinned_or_keeps_its_cpus(site: MachineSite) -> None:
    site.run("vm-1", vcpus=2)
    result = site.scheduler.ask("s1", "repin vm", vm_name="vm-1", vcpu_map=[[0], [1]])
    # The specification has no list, existing programs have one: a reader may take either.
    assert (result["result"], result["status"], result["vm-name"]) == (
        "vm repinned", "success", "vm-1",
    )  # fmt: skip
    assert _part(result, "vm-1")["status"] == "success"
    pins = site.first.virsh("vcpupin", "vm-1").split()
    assert pins == ["0", "0", "1", "1"]
    # A virtual CPU beyond the list stays where it is.
    site.scheduler.ask("s1", "repin vm", vm_name="vm-1", vcpu_map=[[1]])
    assert site.first.virsh("vcpupin", "vm-1").split() == ["0", "1", "1", "1"]
    site.scheduler.ask("s1", "repin vm", vm_name="vm-1", vcpu_map=[[0]])
    wrong = site.scheduler.ask("s1", "repin vm", vm_name="vm-1", vcpu_map=[[1], [0], [0]])
    assert wrong["status"] == "error"
    assert "vcpu 2 is out of range" in wrong["details"]
    assert site.first.virsh("vcpupin", "vm-1").split() == pins


@pytest.mark.parametrize("kind", [LIVE, WARM])
def test_a_machine_is_migrated_and_returns(site: MachineSite, kind: str) -> None:
    site.run("vm-1", vcpus=1)
    away = site.scheduler.answer(
        site.scheduler.migrate("s1", "vm-1", "s2", migration_type=kind, vcpu_map=[[1]])
    )
    assert (away["result"], away["status"], away["details"]) == ("vm migrated", "success", "1")
    assert (away["host"], away["state"], "list" in away) == ("s2", "running", False)
    assert away["process-id"] == site.second.process_of("vm-1")
    assert site.libvirt.where("vm-1") == [("s2", "running")]
    assert site.second.virsh("vcpupin", "vm-1").split() == ["0", "1"]
    times = {tag: float(seconds) for tag, seconds in away["time-measurement"].items()}
    assert {"overall", "migrate", "repin", "downtime", "transferred"} <= times.keys()
    assert times["overall"] - times["migrate"] - times["repin"] < 1.0
    site.libvirt.lives("vm-1")
    back = site.scheduler.answer(site.scheduler.migrate("s2", "vm-1", "s1", migration_type=kind))
    assert (back["status"], back["host"]) == ("success", "s1")
    assert site.libvirt.where("vm-1") == [("s1", "running")]
    assert "Persistent:     yes" in site.first.virsh("dominfo", "vm-1")
    site.libvirt.lives("vm-1")


def _usage(site: MachineSite) -> list[tuple[int, int]]:
    """Return the numbers of descriptors and threads of both frameworks."""
    processes = [f"/proc/{each.process.pid}" for each in site.frameworks if each.process]
    return [(len(os.listdir(f"{p}/fd")), len(os.listdir(f"{p}/task"))) for p in processes]


def test_migrations_back_and_forth_leave_nothing(site: MachineSite) -> None:
    site.run("vm-1")
    names, usage = ["s1", "s2"], list[tuple[int, int]]()
    for number in range(20 if IS_NIGHTLY else 6):
        source, target = names
        kind = (LIVE, WARM)[number // 2 % 2]
        moved = site.scheduler.answer(
            site.scheduler.migrate(source, "vm-1", target, migration_type=kind)
        )
        assert (moved["status"], moved["host"]) == ("success", target), moved
        assert site.libvirt.where("vm-1") == [(target, "running")]
        site.libvirt.lives("vm-1")
        names = [target, source]
        if number == 3:
            usage = _usage(site)
    assert all(
        now <= before for many in zip(_usage(site), usage, strict=True)
        for now, before in zip(*many, strict=True)
    )  # fmt: skip


def test_a_machine_that_is_off_moves_as_its_definition(site: MachineSite) -> None:
    site.first.virsh("define", str(site.libvirt.definition("vm-1")))
    moved = site.scheduler.answer(
        site.scheduler.migrate("s1", "vm-1", "s2", migration_type="offline")
    )
    assert (moved["status"], moved["state"]) == ("success", "shut off")
    assert site.libvirt.where("vm-1") == [("s2", "shut off")]


def test_two_machines_change_places(site: MachineSite) -> None:
    site.run("vm-1")
    site.run("vm-2")
    site.first.virsh("migrate", "--live", "vm-2", site.second.uri, "--migrateuri",
                     "tcp://127.0.0.1", "--persistent", "--undefinesource")  # fmt: skip
    result = site.scheduler.answer(
        site.scheduler.migrate(
            "s1", "vm-1", "s2", migration_type=LIVE, swap_with={"vm-name": "vm-2"}
        )
    )
    assert (result["status"], result["vm-name"], result["host"]) == ("success", "vm-1", "s2")
    assert "vm-2: moved, on s1" in result["details"]
    assert "migrate-vm-2" in result["time-measurement"]
    assert site.libvirt.where("vm-1") == [("s2", "running")]
    assert site.libvirt.where("vm-2") == [("s1", "running")]


def test_a_node_is_evacuated(site: MachineSite) -> None:
    site.run("vm-1")
    site.run("vm-2")
    site.first.virsh("create", str(site.libvirt.definition("others")))
    result = site.scheduler.ask(
        "s1", "evacuate node", destinations=["lost", "s2"],
        parameter={"mode": "scatter", "migration-type": LIVE},
    )  # fmt: skip
    assert result["result"] == "node evacuated"
    assert [(each["vm-name"], each["status"]) for each in result["list"]] == [
        ("vm-1", "success"), ("vm-2", "success"),
    ]  # fmt: skip
    assert site.second.machines().keys() == {"vm-1", "vm-2"}
    assert site.first.machines() == {"others": "running"}


def test_a_second_task_for_a_busy_machine_is_an_error(site: MachineSite) -> None:
    site.run("vm-1", guest="deaf")
    first = site.scheduler.task("s1", "stop vm", list=[{"vm-name": "vm-1"}])
    second = site.scheduler.migrate("s1", "vm-1", "s2")
    assert site.scheduler.answer(second)["details"] == f"busy: stop vm, {first}"
    assert _part(site.scheduler.answer(first), "vm-1")["status"] == "error"


def test_a_repeated_id_gets_the_same_result(site: MachineSite) -> None:
    site.run("vm-1")
    text = "task: suspend vm\nid: same\nlist: [{vm-name: vm-1}]"
    site.scheduler.send("s1", text)
    first = site.scheduler.answer("same")
    site.first.virsh("resume", "vm-1")
    site.scheduler.send("s1", text)
    until(lambda: len(site.scheduler.answers("same")) == 2)
    assert site.scheduler.answers("same")[1] == first
    assert site.first.machines()["vm-1"] == "running"
    site.scheduler.send("s1", text.replace("suspend", "resume"))
    until(lambda: len(site.scheduler.answers("same")) == 3)
    assert "another task had it" in str(site.scheduler.answers("same")[2])


@pytest.mark.parametrize(
    ("text", "result", "details"),
    [
        ("[", "unknown", "not YAML"),
        ("task: dance vm\nid: x", "unknown", "no task of the migration framework"),
        ("task: quit", "quit", "this service is stopped by its node only"),
        ("task: stop vm\nlist: [{regex: '.*', force: true}]", "vm stopped", "regex: not accepted"),
        (
            "task: start vm\nvm-configurations: [{vm-name: vm-1, xml: <network/>}]",
            "vm started", "xml: network: not an element",
        ),
        ("task: migrate vm\nvm-name: vm-1\ndestination: s3", "vm migrated", "destination: not one"),
        (
            "task: migrate vm\nvm-name: vm-1\ndestination: s2\ntransport: ext", "vm migrated",
            "transport: not accepted",
        ),
        (
            "task: migrate vm\nvm-name: vm-1\ndestination: s2\nparameter: {pscom-hook-procs: auto}",
            "vm migrated", "auto: not supported",
        ),
        ("task: migrate vm\nvm-name: others\ndestination: s2", "vm migrated", "Domain not found"),
        ("task: suspend vm\ndriver: lxctools\nlist: [{vm-name: vm-1}]", "vm suspended", "driver"),
        (
            "task: start vm\nvm-configurations: [{vm-name: vm-1, memory: 99999999}]",
            "vm started", "memory: 99999999 KiB, the policy allows",
        ),
        ("task: repin vm\nvm-name: vm-1\nvcpu-map: [[9]]", "vm repinned", "CPU 9 is not allowed"),
    ],
    ids=range(12),
)  # fmt: skip
def test_a_refused_task_is_answered(
    site: MachineSite, text: str, result: str, details: str
) -> None:
    seen = len(site.scheduler.results)
    site.scheduler.send("s1", text)
    until(lambda: len(site.scheduler.results) > seen)
    _, document, _ = site.scheduler.results[-1]
    assert document["result"] == result
    part = document if "status" in document else document["list"][0]
    assert part["status"] == "error"
    assert details in part["details"]


def test_an_empty_list_has_an_empty_result(site: MachineSite) -> None:
    result = site.scheduler.ask("s1", "stop vm", list=[])
    assert (result["result"], result["list"]) == ("vm stopped", [])


class Processes:
    """Processes of a machine that answer requests to pscom, each twice."""

    def __init__(self, site: MachineSite, processes: int, tasks: tuple[str, ...]) -> None:
        self.requests: list[str] = []
        self._processes = processes
        self._tasks = tasks
        self._client = paho.Client(CallbackAPIVersion.VERSION2)
        self._is_ready = threading.Event()
        self._client.on_subscribe = self._on_subscribe
        self._client.on_message = self._on_message
        self._client.connect("127.0.0.1", site.broker.ports["mqtt"])
        self._client.loop_start()
        self._client.subscribe("fast/pscom/vm-1/any_proc/request", 1)
        assert self._is_ready.wait(60)

    def stop(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _on_subscribe(self, *_: Any) -> None:
        self._is_ready.set()

    def _on_message(self, client: paho.Client, _data: Any, message: paho.MQTTMessage) -> None:
        document = next(iter(yaml.safe_load_all(bytes(message.payload))))
        self.requests.append(document["task"])
        if document["task"] in self._tasks:
            for process in [*range(self._processes)] * 2:
                client.publish(f"fast/pscom/vm-1/{process}/response", "ready", 1)


@pytest.mark.parametrize(
    ("processes", "tasks", "status", "where", "details"),
    [
        (2, ("suspend", "resume"), "success", "s2", "1"),
        (1, ("suspend", "resume"), "error", "s1", "pscom suspend: 1 of 2 processes answered"),
        (2, ("suspend",), "success", "s2", "moved; pscom resume: 0 of 2 processes answered"),
    ],
    ids=["all answer", "one does not", "none resumes"],
)
def test_processes_suspend_their_connections(
    site: MachineSite,
    processes: int,
    tasks: tuple[str, ...],
    status: str,
    where: str,
    details: str,
) -> None:
    site.run("vm-1")
    answering = Processes(site, processes, tasks)
    try:
        result = site.scheduler.answer(
            site.scheduler.migrate("s1", "vm-1", "s2", pscom_hook_procs=2)
        )
    finally:
        answering.stop()
    assert answering.requests == ["suspend", "resume"]
    assert (result["status"], result["host"]) == (status, where)
    assert details in result["details"]
    assert "pscom-suspend-vm-1" in result["time-measurement"]
    assert site.libvirt.where("vm-1") == [(where, "running")]


def test_a_changed_policy_is_read_again(site: MachineSite) -> None:
    site.run("vm-1")
    framework = site.frameworks[0]
    file = framework.directory / "ccagent.toml"
    before = file.read_text()
    assert framework.process is not None

    def reload(text: str) -> None:
        count = framework.log.count("policy read again")
        file.write_text(text)
        assert framework.process is not None
        framework.process.send_signal(signal.SIGHUP)
        until(lambda: framework.log.count("policy read again") > count)

    reload(before.replace('"vm-[a-z0-9]+"', '"other"'))
    result = site.scheduler.ask("s1", "suspend vm", list=[{"vm-name": "vm-1"}])
    assert "Domain not found" in _part(result, "vm-1")["details"]
    reload(before)
    result = site.scheduler.ask("s1", "suspend vm", list=[{"vm-name": "vm-1"}])
    assert _part(result, "vm-1")["status"] == "success"
