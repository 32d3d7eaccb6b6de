"""A real mosquitto below a directory of the test, one that misbehaves, and a subscriber."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from paho.mqtt import client as paho
from paho.mqtt import properties
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_CONFIGURATION = """
user root
persistence true
persistence_location {directory}/
queue_qos0_messages true
max_queued_messages 1000000
log_dest stderr
log_type all
"""


class Broker:
    """A mosquitto with ports of its own; `configuration` is more of its configuration file.

    `certificate` is a CA, a certificate and its key: with them there are `mqtts://` and `wss://`,
    to which `more` adds.
    """

    def __init__(
        self,
        directory: Path,
        configuration: str = "",
        *,
        passwords: dict[str, str] | None = None,
        certificate: tuple[str, str, str] | None = None,
        more: dict[str, str] | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        schemes = ("mqtt", "ws") if certificate is None else ("mqtt", "ws", "mqtts", "wss")
        self.ports = {scheme: free_port() for scheme in schemes}
        lines = [_CONFIGURATION.format(directory=directory)]
        if passwords is None:
            lines.append("allow_anonymous true")
        else:
            self.set_passwords(passwords)
            lines.append(f"allow_anonymous false\npassword_file {directory / 'passwords'}")
        lines.append(configuration)
        for scheme, port in self.ports.items():
            lines.append(f"listener {port} 127.0.0.1")
            if scheme in {"ws", "wss"}:
                lines.append("protocol websockets")
            if scheme in {"mqtts", "wss"} and certificate is not None:
                names = ("cafile", "certfile", "keyfile")
                lines += [f"{n} {path}" for n, path in zip(names, certificate, strict=True)]
                lines += [f"{key} {value}" for key, value in (more or {}).items()]
        (directory / "mosquitto.conf").write_text("\n".join(lines) + "\n")
        self.start()

    def url(self, scheme: str = "mqtt", host: str = "127.0.0.1") -> str:
        return f"{scheme}://{host}:{self.ports[scheme]}"

    @property
    def log(self) -> str:
        return (self._directory / "log").read_text(errors="replace")

    def set_passwords(self, passwords: dict[str, str]) -> None:
        path = self._directory / "passwords"
        path.touch()
        for user, password in passwords.items():
            subprocess.run(["mosquitto_passwd", "-b", str(path), user, password], check=True)

    def start(self) -> None:
        """Start it, again on the same ports."""
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["/usr/sbin/mosquitto", "-c", str(self._directory / "mosquitto.conf")], stderr=log
            )
        for port in self.ports.values():
            wait_for(partial(self._listens, port))

    def _listens(self, port: int) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return True
        return False

    def save(self) -> None:
        """Have it write its state to the disk, as it does every half hour otherwise."""
        assert self._process is not None
        saved = self._directory / "mosquitto.db"
        saved.unlink(missing_ok=True)
        self._process.send_signal(10)
        wait_for(saved.exists)

    def reload(self) -> None:
        """Have it read its configuration and passwords again."""
        assert self._process is not None
        said = self.log.count("Reloading config.")
        self._process.send_signal(1)
        wait_for(lambda: self.log.count("Reloading config.") > said)

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(19)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(18)

    def kill(self) -> None:
        """Kill it with -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Got(NamedTuple):
    """What a subscriber got."""

    topic: str
    payload: bytes
    retained: bool
    properties: dict[str, Any]


class Subscriber:
    """Gets all that comes to a broker, with `keeps` in a session that the broker keeps.

    At QoS 0, so that no acknowledgement is underway when the broker dies: the kernel then hands
    over all that the broker has written.
    """

    def __init__(
        self,
        broker: Broker,
        topics: str = "#",
        user: str = "",
        password: str = "",
        *,
        keeps: bool = False,
    ) -> None:
        self.got: list[Got] = []
        self._ready = threading.Event()
        self._topics = topics
        self._client = paho.Client(CallbackAPIVersion.VERSION2, "subscriber", protocol=paho.MQTTv5)
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = self._on_disconnect
        self._client.on_message = self._on_message
        self._client.on_subscribe = self._on_subscribe
        cast("Any", self._client).reconnect_delay_set(0.05, 0.05)
        if user:
            self._client.username_pw_set(user, password)
        session = cast("Any", properties.Properties)(PacketTypes.CONNECT)
        session.SessionExpiryInterval = 3600 if keeps else 0
        self._client.connect(
            "127.0.0.1", broker.ports["mqtt"], clean_start=not keeps, properties=session
        )
        self._client.loop_start()
        self.wait()

    def wait(self) -> None:
        """Wait until it is connected (again)."""
        assert self._ready.wait(60)

    def lost(self) -> None:
        """Wait until it has noticed that the broker is gone."""
        wait_for(lambda: not self._ready.is_set())

    def payloads(self, count: int, topic: str = "") -> list[bytes]:
        """Wait for so many messages whose topics begin so, and give their payloads."""
        return [got.payload for got in self.messages(count, topic)]

    def messages(self, count: int, topic: str = "") -> list[Got]:
        def found() -> list[Got]:
            return [got for got in list(self.got) if got.topic.startswith(topic)]

        wait_for(lambda: len(found()) >= count)
        return found()

    def stop(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()
        self._client._reset_sockets()

    def _on_connect(self, client: paho.Client, *_: Any) -> None:
        client.subscribe(
            self._topics,
            options=SubscribeOptions(qos=0, retainAsPublished=True),
        )

    def _on_subscribe(self, *_: Any) -> None:
        self._ready.set()

    def _on_disconnect(self, *_: Any) -> None:
        self._ready.clear()

    def _on_message(self, _client: paho.Client, _data: Any, message: paho.MQTTMessage) -> None:
        properties: dict[str, Any] = cast("Any", message.properties).json()
        self.got.append(Got(message.topic, bytes(message.payload), message.retain, properties))


class Pretender:
    """A server that does to each connection what its script says."""

    def __init__(self, script: Callable[[Pretender, socket.socket], None]) -> None:
        self._script = script
        self._ended = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(0.05)
        self.port: int = self._listening.getsockname()[1]
        self.connections = 0
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(OSError):
                connected, _ = self._listening.accept()
                self.connections += 1
                with connected:
                    connected.settimeout(5)
                    self._script(self, connected)

    def hang(self) -> None:
        """Send nothing more, for as long as the test runs."""
        self._ended.wait(60)

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()
        self._listening.close()


def packet(connected: socket.socket) -> tuple[int, bytes]:
    """Read a packet of MQTT: its first byte and what follows its length."""

    def exactly(count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = connected.recv(count - len(data))
            if not more:
                raise ConnectionError
            data += more
        return data

    first, size, shift = exactly(1)[0], 0, 0
    while True:
        (byte,) = exactly(1)
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return first, exactly(size)


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it has not come to pass"
        time.sleep(0.002)
