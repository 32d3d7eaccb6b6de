"""The part of a FAST scheduler that moves machines, from the specification: YAML and topics."""

from __future__ import annotations

import socket
import threading
import time
import uuid
from typing import Any, cast

import yaml
from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.running import until


class MachineScheduler:
    """Sends tasks to frameworks, and keeps their results."""

    def __init__(self, port: int, user: str = "", password: str = "", ca: str = "") -> None:
        self.results: list[tuple[str, dict[str, Any], float]] = []
        self._ready = threading.Event()
        self._client = paho.Client(CallbackAPIVersion.VERSION2, "machine-scheduler")
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = self._on_subscribe
        self._client.on_message = self._on_message
        if user:
            self._client.username_pw_set(user, password)
        if ca:
            cast("Any", self._client).tls_set(ca)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        assert self._ready.wait(60)

    def stop(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def send(self, host: str, text: str) -> None:
        """Publish a task as text."""
        sent = self._client.publish(f"fast/migfra/{host}/task", f"---\n{text}\n---\n", qos=1)
        sent.wait_for_publish(60)

    def task(self, host: str, task: str, **fields: Any) -> str:
        """Send a task and return its id. An underscore of a field is a hyphen."""
        name = str(uuid.uuid4())
        document = {"host": host, "task": task, "id": name}
        document |= {key.replace("_", "-"): value for key, value in fields.items()}
        self.send(host, yaml.safe_dump(document, sort_keys=False))  # pyright: ignore[reportUnknownMemberType]
        return name

    def answers(self, name: str) -> list[dict[str, Any]]:
        """Return the results of a task."""
        return [document for _, document, _ in [*self.results] if document.get("id") == name]

    def answer(self, name: str) -> dict[str, Any]:
        """Wait for the result of a task."""
        until(lambda: self.answers(name))
        return self.answers(name)[0]

    def ask(self, host: str, task: str, **fields: Any) -> dict[str, Any]:
        """Send a task and return its result."""
        return self.answer(self.task(host, task, **fields))

    def migrate(self, host: str, machine: str, destination: str, **parameter: Any) -> str:
        return self.task(
            host, "migrate vm", vm_name=machine, destination=destination, time_measurement=True,
            parameter={key.replace("_", "-"): value for key, value in parameter.items()},
        )  # fmt: skip

    def _on_connect(self, client: paho.Client, *_: Any) -> None:
        # Else a task waits up to 40 ms for the TCP ACK of the confirmation of the last result.
        cast("Any", client.socket()).setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.subscribe("fast/migfra/+/result", 1)

    def _on_subscribe(self, *_: Any) -> None:
        self._ready.set()

    def _on_message(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        document = next(iter(yaml.safe_load_all(bytes(message.payload))))
        self.results.append((message.topic, document, time.monotonic()))
