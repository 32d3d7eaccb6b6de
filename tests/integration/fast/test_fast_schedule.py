"""The reference scheduler, beside nodes that send the messages of the specification."""

from __future__ import annotations

import subprocess
import threading
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.mqtt_broker import Broker
from tests.support.running import CCAGENT, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class SpecifiedNode:
    """Agent, framework and applications of a node, from the specification: topics and YAML.

    Only `vm-name` of its KPI messages is not specified: without it no value has a machine.
    """

    def __init__(self, port: int, name: str, machines: dict[str, float], **node: Any) -> None:
        self.name = name
        self.tasks: list[dict[str, Any]] = []
        self.responses: dict[tuple[int, ...], float] = {}
        """Responses of mmbwmon by cores; other cores are in use."""
        self._machines, self._node = machines, node
        self._stop = threading.Event()
        self._is_subscribed = threading.Event()
        self._client = paho.Client(CallbackAPIVersion.VERSION2, name)
        self._client.on_message = self._on_message
        self._client.on_subscribe = self._on_subscribe
        self._client.connect("127.0.0.1", port)
        self._client.subscribe([
            (f"fast/agent/{name}/task/#", 1), (f"fast/agent/{name}/mmbwmon/request", 1),
            (f"fast/migfra/{name}/task", 1),
        ])  # fmt: skip
        self._client.loop_start()
        assert self._is_subscribed.wait(60)
        self._thread = threading.Thread(target=self._report)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._client.disconnect()
        self._client.loop_stop()

    def send(self, topic: str, text: str) -> None:
        self._client.publish(f"fast/{topic}", f"---\n{text}\n---\n", qos=1)

    def _on_subscribe(self, *_: Any) -> None:
        self._is_subscribed.set()

    def _report(self) -> None:
        while not self._stop.wait(0.2):
            for machine, usage in self._machines.items():
                values = {"Application/VM Cpu usage": usage} | self._node
                lines = "".join(f"- {name} : {value}\n" for name, value in values.items())
                self.send(
                    f"agent/{self.name}/status",
                    f"task: KPI\nsource: {self.name}\njob-description: {{vm-name: {machine}}}\n"
                    f"KPIS:\n{lines}",
                )

    def _on_message(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        task = next(iter(yaml.safe_load_all(bytes(message.payload))))
        self.tasks.append(task)
        match task["task"]:
            case "mmbwmon request":
                response = self.responses.get(tuple(task["cores"]))
                text = f"task: mmbwmon response\ncores: {task['cores']}\n"
                # The specification has no answer to a failed measurement: this is ccagent's.
                text += f"response: {response}" if response else "status: error\ndetails: in use"
                self.send(f"agent/{self.name}/mmbwmon/response", text)
            case "migrate vm" | "repin vm" as kind:
                result = {"migrate vm": "vm migrated", "repin vm": "vm repinned"}[kind]
                self.send(
                    f"migfra/{self.name}/result",
                    f"result: {result}\nid: {task['id']}\nvm-name: {task['vm-name']}\n"
                    "status: success",
                )
            case _:
                pass


class ScheduledBroker:
    """A broker, nodes, and the command."""

    def __init__(self, directory: Path) -> None:
        self.broker = Broker(directory / "broker")
        self.nodes: list[SpecifiedNode] = []
        self._file = directory / "ccagent.toml"
        url = self.broker.url("mqtt")
        self._file.write_text(f'[agents.fast]\nurl = "{url}"\nallow-cleartext = true\n')

    def node(self, name: str, machines: dict[str, float], **node: Any) -> SpecifiedNode:
        made = SpecifiedNode(self.broker.ports["mqtt"], name, machines, **node)
        self.nodes.append(made)
        return made

    def schedule(self, *options: str) -> str:
        """Run the command, and return what it printed."""
        done = subprocess.run(
            [*CCAGENT, "fast", "schedule", "--config", str(self._file), "--seconds", "3", *options],
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def site(tmp_path: Path) -> Iterator[ScheduledBroker]:
    made = ScheduledBroker(tmp_path)
    yield made
    for node in made.nodes:
        node.stop()
    made.broker.kill()


HOGS = {"vm-1": 40.0, "vm-2": 40.0}


def bandwidth(value: int) -> dict[str, int]:
    return {"Node memory bandwidth": value}


def test_nodes_of_a_broker_are_found_and_hogs_moved_apart(site: ScheduledBroker) -> None:
    first = site.node("c1", HOGS, **bandwidth(90_000_000_000))
    site.node("c2", {"vm-3": 1.0}, **bandwidth(10_000_000_000))
    said = site.schedule("--apply")
    assert "node c1: memory bandwidth 90.00 GB/s" in said
    move = "move vm-1 from c1 to c2: load 90.0 and 10.0 GB/s become 45.0 and 55.0"
    assert move in said
    assert "vm-1: moved" in said
    (task,) = [each for each in first.tasks if each["task"] == "migrate vm"]
    assert (task["vm-name"], task["destination"]) == ("vm-1", "c2")
    assert task["parameter"]["migration-type"] == "live"


def test_applications_are_shown_and_decide(site: ScheduledBroker) -> None:
    first = site.node("c1", HOGS, **bandwidth(90_000_000_000))
    site.node("c2", {"vm-3": 1.0}, **bandwidth(10_000_000_000))
    stop = threading.Event()

    def publish() -> None:
        while not stop.wait(0.3):
            for job, value, migration in (("vm-1", 70, "yes"), ("vm-2", 20, "no")):
                first.send(
                    f"application/{job}/status",
                    f"task: status\nsource: {job}\nmigration: {migration}\n"
                    "supported_KPI :\n- memory bandwidth",
                )
                first.send(
                    f"application/{job}/KPIs",
                    f"task: KPIs\nsource: {job}\nsupported_KPI :\n- memory bandwidth : {value}",
                )

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        said = site.schedule("--nodes", "c1,c2")
    finally:
        stop.set()
        thread.join()
    assert "    application: memory bandwidth 70" in said
    assert "    application: memory bandwidth 20" in said
    assert "must not be migrated" in said
    # vm-2 would be moved, but it must not be.
    assert "move vm-1 from c1 to c2: load 90.0 and 10.0 GB/s become 20.0 and 80.0" in said
    assert not [each for each in first.tasks if each["task"] == "migrate vm"]


def test_free_cores_of_the_node_are_used_before_another_node(site: ScheduledBroker) -> None:
    first = site.node("c1", HOGS)
    first.responses = {(0, 1): 0.33, (2, 3): 0.95}
    second = site.node("c2", {"vm-3": 1.0})
    second.responses = {(0, 1): 1.0}
    said = site.schedule("--apply", "--cores", "0-1", "--cores", "2-3", "--vcpus", "2")
    assert "  cores 0,1: mmbwmon 0.33" in said
    assert "  cores 2,3: mmbwmon not measured" in said
    assert "repin vm-1 on c1 to the cores 2,3: load 100.0 and 0.0 % of bandwidth missing" in said
    assert "vm-1: repinned" in said
    (task,) = [each for each in first.tasks if each["task"] == "repin vm"]
    assert (task["vm-name"], task["vcpu-map"]) == ("vm-1", [[2, 3], [2, 3]])
    until(lambda: len([each for each in second.tasks if each["task"] == "mmbwmon request"]) >= 2)
