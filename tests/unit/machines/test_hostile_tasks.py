"""Tasks that are not allowed reach neither libvirt nor the machine, whatever they hold."""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from ccagent.agents.fast.session import AnswerQueue
from ccagent.machines.framework import Framework
from ccagent.machines.settings import AllowMachines, MigfraSettings
from ccagent.net.mqtt_broker import ReceivedMessage
from ccagent.net.signatures import write_signed
from tests.support.nats_server import new_seed, public_key
from tests.support.running import until
from tests.support.tree import TreeNode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TASK = "fast/migfra/c1-1/task"
URI = "x/system?command=/bin/touch&netcat=PATH"
XML = (
    "<domain type='qemu'><name>vm-1</name><os><type>hvm</type></os><devices>"
    "<emulator>PATH</emulator></devices></domain>"
)
TASKS = ("suspend vm", "migrate vm", "start vm", "repin vm", "stop vm")


class FrameworkScene:
    """A framework whose connections to libvirt are recorded, and fail."""

    def __init__(self, directory: Path, **allow: Any) -> None:
        (directory / "state").mkdir()
        self.opened: list[str] = []
        self.settings = MigfraSettings(
            url="mqtt://127.0.0.1",
            state_directory=str(directory / "state"),
            allow=AllowMachines(**allow),
        )
        self.answers = AnswerQueue(str(directory / "state"), "fox", "c1-1", "migfra")
        self._number = 0
        self.framework = Framework(
            TreeNode(directory / "node"), self.settings, self.answers, self._open
        )

    def _open(self, uri: str) -> Any:
        self.opened.append(uri)
        raise OSError("no libvirt here")

    def send(self, payload: bytes | str, topic: str = TASK) -> None:
        self._number += 1
        body = payload if isinstance(payload, bytes) else payload.encode()
        number = self._number % 60000
        self.framework.on_message(ReceivedMessage(topic, body, number, 1, False, False))

    def taken(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while (answer := self.answers.first()) is not None:
            assert answer.topic == "fast/migfra/c1-1/result"
            found.append(next(iter(yaml.safe_load_all(answer.payload))))
            self.answers.remove(answer)
        return found

    def answer(self) -> dict[str, Any]:
        """Wait for one result, and return it."""
        until(lambda: self.answers.count() > 0)
        (found,) = self.taken()
        return found


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[FrameworkScene]:
    made = FrameworkScene(
        tmp_path,
        tasks=TASKS,
        machines=("vm-[0-9]+",),
        destinations={"fox2": "qemu+tls://fox2/system"},
        cpus="2-3",
    )
    yield made
    made.answers.close()
    made.framework.journal.close()


ATTACKS = [
    # A program in the URI of libvirt: it was run as the user of the original framework.
    f'task: migrate vm\nid: a\nvm-name: vm-1\ntransport: ext\ndestination: "{URI}"',
    f'task: migrate vm\nid: b\nvm-name: vm-1\ndestination: "{URI}"',
    'task: migrate vm\nid: c\nvm-name: vm-1\ndriver: "test:///default?"\ndestination: fox2',
    # A program as emulator: it was run when libvirt looked at its capabilities.
    f"task: start vm\nid: d\nvm-configurations:\n- vm-name: vm-1\n  xml: {XML}",
    "task: start vm\nid: e\nvm-configurations: [{vm-name: vm-1, template: ../../etc/passwd}]",
    "task: start vm\nid: f\nvm-configurations: [{vm-name: vm-1, ivshmem: {path: PATH}}]",
    "task: start vm\nid: g\nvm-configurations: [{vm-name: vm-1, probe-hostname: 10.0.0.1}]",
    "task: stop vm\nid: h\nlist: [{regex: .*, force: true}]",
    "task: stop vm\nid: i\nlist: [{vm-name: vm-1, force: true}]",
    "task: stop vm\nid: j\nlist: [{vm-name: vm-1/../vm-2}]",
    "task: migrate vm\nid: k\nvm-name: vm-1\ndestination: fox2\nparameter: {vcpu-map: [[0]]}",
    "task: migrate vm\nid: n\nvm-name: vm-1\ndestination: fox2\nparameter: {rdma-migration: true}",
    "task: migrate vm\nid: o\nvm-name: vm-1\ndestination: fox2\nparameter: {retry-counter: 4}",
    "task: migrate vm\nid: p\nvm-name: vm-1\ndestination: fox2\nparameter: {migration-type: hot}",
    "task: start vm\nid: q\nvm-configurations: [{vm-name: vm-1, pci-ids: {vendor: 1, device: 2}}]",
    "task: start vm\nid: r\nvm-configurations: [{vm-name: vm-1, devs: [{pci-addr: '1:2.3'}]}]",
    # Accepted by the original for containers only: the machine would start on any CPU.
    "task: start vm\nid: s\nvm-configurations: [{vm-name: vm-1, vcpu-map: [[2]]}]",
    "task: start vm\nid: t\nvm-configurations: [{vm-name: vm-1, memnode-map: [[0]]}]",
    "task: evacuate node\nid: l\ndestinations: [fox2]",
    "task: quit\nid: m",
]  # fmt: skip


@pytest.mark.parametrize("text", ATTACKS, ids=range(len(ATTACKS)))
def test_an_attack_is_answered_without_a_call_to_libvirt(
    scene: FrameworkScene, tmp_path: Path, text: str
) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/run\n")
    program.chmod(0o755)
    scene.send(text.replace("PATH", str(program)))
    result = scene.answer()
    parts = result.get("list", [result])
    assert {part["status"] for part in parts} == {"error"}
    assert all(part["details"] for part in parts)
    assert scene.opened == []
    assert not (tmp_path / "run").exists()


_NAMES = (
    "vm-1",
    "vm-9999",
    "x",
    "../vm-1",
    "vm-1\n",
    "${HOME}",
    "vm-1?socket=/x",
    "A" * 300,
    "vm-1;ls",
)
_KEYS = (
    "vm-name", "destination", "xml", "regex", "driver", "transport", "template", "vcpu-map",
    "force", "memory", "pci-ids", "parameter", "list", "vm-configurations", "destinations",
    "host", "id",
)  # fmt: skip


def _hostile(chance: random.Random) -> bytes:
    """Return a task that no policy of the scene allows: of a form, of random keys, or damaged."""
    document: dict[str, Any] = {"task": chance.choice((*TASKS, "quit", "evacuate node", "x"))}
    values: tuple[Any, ...] = (
        *_NAMES,
        "qemu:///system?command=/bin/sh",
        -1,
        2**70,
        True,
        [],
        {},
        None,
    )
    for key in chance.sample(_KEYS, chance.randrange(1, 8)):
        document[key] = chance.choice(values)
    bad = {"vm-name": chance.choice(_NAMES[2:])}
    if chance.random() < 0.7:
        document["list"] = document["vm-configurations"] = [bad, {chance.choice(_KEYS): "vm-1"}]
        document["vm-name"], document["destination"] = bad["vm-name"], chance.choice(values[:10])
    document["driver"] = "qemu"
    payload = yaml.safe_dump(document).encode()  # pyright: ignore[reportUnknownMemberType]
    if chance.random() < 0.2:
        place = chance.randrange(len(payload))
        payload = payload[:place] + chance.randbytes(3) + payload[place:]
    return payload


@pytest.mark.slow
def test_a_thousand_hostile_tasks_reach_nothing(scene: FrameworkScene, tmp_path: Path) -> None:
    chance = random.Random(20261125)
    before = {*os.listdir(tmp_path), *os.listdir(tmp_path / "state")}
    answers = 0
    for number in range(1000):
        scene.send(_hostile(chance))
        if number % 100 == 99:
            answers += len(scene.taken())
    assert answers == 1000
    assert scene.opened == []
    new = {*os.listdir(tmp_path), *os.listdir(tmp_path / "state")} - before
    assert {name.split(".")[0] for name in new} <= {"audit", "tasks", "migfra"}
    assert (tmp_path / "state" / "audit.jsonl").stat().st_size < 20_000
    assert scene.framework.journal.unfinished() == []


_ELEMENTS = (
    "<emulator>/bin/sh</emulator>", "<hostdev/>", "<filesystem/>", "<serial type='file'/>",
    "<disk type='file' device='disk'><source file='/etc/passwd'/></disk>", "<shmem name='x'/>",
    "<interface type='network'><script path='/x'/></interface>", "<rng model='virtio'/>",
    "<tpm model='tpm-crb'/>", "<q:commandline xmlns:q='qemu'/>", "&a;", "<", "</domain>", "<!--",
)  # fmt: skip


@pytest.mark.slow
def test_a_thousand_hostile_definitions_reach_nothing(tmp_path: Path) -> None:
    """Also where the policy accepts definitions of harmless elements."""
    chance = random.Random(38)
    scene = FrameworkScene(tmp_path, tasks=TASKS, machines=("vm-[0-9]+",), xml="checked")
    head = "<domain type='qemu'><name>vm-1</name><memory>8192</memory><os><type>hvm</type></os>"
    for number in range(1000):
        parts = "".join(chance.choices(_ELEMENTS, k=chance.randrange(1, 4)))
        if number % 10 == 0:
            parts = "<!DOCTYPE a [<!ENTITY a SYSTEM 'file:///etc/passwd'>]>" + parts
        place = chance.choice(("{}<devices/></domain>", "<devices>{}</devices></domain>"))
        part = {"xml": head + place.format(parts), "transient": True}
        task = {"task": "start vm", "id": f"{number}", "vm-configurations": [part]}
        scene.send(yaml.safe_dump(task))  # pyright: ignore[reportUnknownMemberType]
    results = scene.taken()
    assert len(results) == 1000
    assert all(each["list"][0]["details"].startswith("xml: ") for each in results)
    assert scene.opened == []
    scene.answers.close()
    scene.framework.journal.close()


def test_only_signed_tasks_of_known_keys_are_accepted(tmp_path: Path) -> None:
    known, other = new_seed(), new_seed()
    key = public_key(known)
    machines = ("vm-1",)
    scene = FrameworkScene(tmp_path, tasks=TASKS, machines=machines, signed_by=(key,))
    body = b"task: suspend vm\nlist: [{vm-name: vm-1}]\n"
    signed = write_signed(known, TASK, body, time.time() + 1)

    def details(payload: bytes) -> str:
        scene.send(payload)
        result: dict[str, Any] = scene.answer()
        return str(result["list"][0]["details"])

    assert details(body) == "signature: none of a key that this node's policy names"
    assert "none of a key" in details(write_signed(other, TASK, body, time.time() + 1))
    stranger = write_signed(known, "fast/migfra/c1-2/task", body, time.time() + 1)
    assert details(stranger) == "signature: it does not fit the request"
    assert details(signed.replace(b"suspend", b"resume")) == (
        "signature: it does not fit the request"
    )
    assert scene.opened == []
    assert "no libvirt here" in details(signed)
    assert details(signed) == "signature: used before"
    named = write_signed(known, TASK, b"id: a\n" + body, time.time() + 1)
    assert "no libvirt here" in details(named)
    until(lambda: scene.framework.journal.unfinished() == [])
    assert "no libvirt here" in details(named)  # the stored result: a broker may repeat a task
    audit = (tmp_path / "state" / "audit.jsonl").read_text()
    assert audit.count(f'"by":"{key}"') == 4  # accepted and finished
    scene.answers.close()
    scene.framework.journal.close()


def test_a_task_without_an_allowed_part_is_not_recorded(scene: FrameworkScene) -> None:
    """Otherwise its id would displace that of a task that was done."""
    scene.send("task: suspend vm\nid: r\nlist: [{vm-name: x}, {vm-name: y}]")
    assert [each["vm-name"] for each in scene.answer()["list"]] == ["x", "y"]
    assert scene.framework.journal.find("id:r") is None


def test_a_retained_task_is_ignored(scene: FrameworkScene) -> None:
    body = b"task: suspend vm\nlist: [{vm-name: vm-1}]"
    scene.framework.on_message(ReceivedMessage(TASK, body, 1, 1, False, True))
    assert scene.taken() == []
    assert scene.opened == []


def test_an_allowed_task_is_recorded_before_libvirt_is_asked(scene: FrameworkScene) -> None:
    scene.send("task: suspend vm\nid: q\nlist: [{vm-name: vm-1}]")
    result = scene.answer()
    assert result["id"] == "q"
    assert "no libvirt here" in result["list"][0]["details"]
    assert scene.opened == ["qemu:///system"] * len(scene.opened) != []
    until(lambda: scene.framework.journal.unfinished() == [])
    assert scene.framework.journal.find("id:q") is not None
    calls = len(scene.opened)
    scene.send("task: suspend vm\nid: q\nlist: [{vm-name: vm-1}]")
    assert scene.taken() == [result]
    assert len(scene.opened) == calls


def test_a_result_in_the_queue_is_not_found_again_after_a_crash(scene: FrameworkScene) -> None:
    """A crash between queue and journal: the queued result is the answer."""
    body = b"task: suspend vm\nid: q\nlist: [{vm-name: vm-1}]"
    scene.framework.journal.accept("id:q", "digest", body)
    scene.answers.put("id:q", "fast/migfra/c1-1/result", b"---\nresult: vm suspended\n---\n")
    scene.framework.recover()
    assert scene.taken() == [{"result": "vm suspended"}]
    assert scene.framework.journal.unfinished() == []
    assert scene.opened == []


def test_a_task_that_blocks_is_finished_before_the_next(scene: FrameworkScene) -> None:
    scene.send("task: suspend vm\nid: one\nconcurrent-execution: false\nlist: [{vm-name: vm-1}]")
    scene.send("task: suspend vm\nid: two\nlist: [{vm-name: vm-1}]")
    found: list[str] = []

    def are_there() -> bool:
        found.extend(each["id"] for each in scene.taken())
        return len(found) == 2

    until(are_there)
    assert found == ["one", "two"]
