"""A FAST scheduler, written from the specification alone: YAML, topics and nothing of ours."""

from __future__ import annotations

import ssl
import threading
import time
import uuid
from typing import Any, NamedTuple, cast

import yaml
from paho.mqtt import client as paho
from paho.mqtt import properties
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes

from tests.support.mqtt_broker import wait_for

PATIENCE = 60


class FastReport(NamedTuple):
    """A message that the scheduler got, and when by the steady clock."""

    topic: str
    document: dict[str, Any]
    moment: float
    is_retained: bool


class FastScheduler:
    """Talks to one agent; keeps its session with the broker, as `topics` of the specification."""

    def __init__(
        self,
        port: int,
        *,
        host: str = "c1",
        user: str = "",
        password: str = "",
        ca: str = "",
        name: str = "scheduler",
    ) -> None:
        self.host = host
        self.reports: list[FastReport] = []
        self._ready = threading.Event()
        self._client = paho.Client(CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5)
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = self._on_subscribe
        self._client.on_disconnect = self._on_disconnect
        self._client.on_message = self._on_message
        cast("Any", self._client).reconnect_delay_set(0.05, 0.05)
        if user:
            self._client.username_pw_set(user, password)
        if ca:
            cast("Any", self._client).tls_set_context(ssl.create_default_context(cafile=ca))
        session = cast("Any", properties.Properties)(PacketTypes.CONNECT)
        session.SessionExpiryInterval = 3600
        self._client.connect("127.0.0.1", port, clean_start=False, properties=session)
        self._client.loop_start()
        self.wait()

    def wait(self) -> None:
        """Wait until it is connected (again)."""
        assert self._ready.wait(PATIENCE)

    def lost(self) -> None:
        """Wait until it has noticed that the broker is gone."""
        wait_for(lambda: not self._ready.is_set(), PATIENCE)

    def stop(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def send(self, topic: str, text: str) -> None:
        """Publish, and wait until the broker has it."""
        sent = self._client.publish(topic, text.encode(), qos=1, retain=False)
        sent.wait_for_publish(PATIENCE)
        assert sent.is_published()

    def init_agent(self, categories: list[str], repeat: int, *, level: str = "init_agent") -> str:
        """Send a configuration and return its id."""
        name = str(uuid.uuid4())
        lines = [f"    - {category} : 1" for category in categories]
        text = ["---", "task: init agent", f"id: {name}", "KPI:", "  categories:", *lines]
        text += [f"  repeat: {repeat}", "---", ""]
        self.send(f"fast/agent/{self.host}/task/{level}".rstrip("/"), "\n".join(text))
        return name

    def stop_monitoring(self, job: str, process: int) -> str:
        name = str(uuid.uuid4())
        self.send(
            f"fast/agent/{self.host}/task/stop_monitoring",
            f"---\ntask: stop monitoring\nid: {name}\njob-description:\n"
            f"  job-id: {job}\n  process-id: {process}\n---",
        )
        return name

    def request_bandwidth(self, cores: list[int]) -> str:
        name = str(uuid.uuid4())
        self.send(
            f"fast/agent/{self.host}/mmbwmon/request",
            f"---\ntask: mmbwmon request\nid: {name}\ncores: {cores}\n---",
        )
        return name

    def machine_started(self, name: str, process: int) -> None:
        """Publish what the migration framework would."""
        self.send(
            f"fast/migfra/{self.host}/result",
            f"---\nscheduler: global\nresult: vm started\nid: x\nlist:\n"
            f"  - vm-name: {name}\n    status: success\n    process-id: {process}\n---",
        )

    def of_task(self, task: str, after: int = 0) -> list[FastReport]:
        return [each for each in self.reports[after:] if each.document.get("task") == task]

    def answers(self, name: str) -> list[FastReport]:
        """Return the answers to a request by its id."""
        return [each for each in list(self.reports) if each.document.get("id") == name]

    def answer(self, name: str) -> dict[str, Any]:
        """Wait for the answer to a request."""
        wait_for(lambda: bool(self.answers(name)), PATIENCE)
        return self.answers(name)[0].document

    def wait_for_task(self, task: str, count: int = 1, after: int = 0) -> list[FastReport]:
        wait_for(lambda: len(self.of_task(task, after)) >= count, PATIENCE)
        return self.of_task(task, after)

    def _on_connect(self, client: paho.Client, *_: Any) -> None:
        client.subscribe([
            ("fast/agent/+/status", 1),
            ("fast/agent/+/mmbwmon/response", 1),
        ])  # fmt: skip

    def _on_subscribe(self, *_: Any) -> None:
        self._ready.set()

    def _on_disconnect(self, *_: Any) -> None:
        self._ready.clear()

    def _on_message(self, _client: paho.Client, _data: Any, message: paho.MQTTMessage) -> None:
        # The trailing `---` opens a second, empty document.
        document = next(iter(yaml.safe_load_all(bytes(message.payload))))
        if message.dup and any(each.document == document for each in self.reports):
            # A broker that was killed delivers again what it had no acknowledgement of on disk.
            return
        self.reports.append(FastReport(message.topic, document, time.monotonic(), message.retain))


def values(report: FastReport) -> dict[str, Any]:
    """Return the KPIs of a report, a list of maps of one key each."""
    found: dict[str, Any] = {}
    for each in report.document["KPIS"]:
        (name,) = each
        found[name] = each[name]
    return found
