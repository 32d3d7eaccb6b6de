"""Kafka for tests: the mock brokers that librdkafka brings with it, and what they lack.

The mock knows neither TLS nor logins: a proxy before it adds both.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import hashlib
import hmac
import re
import socket
import ssl
import struct
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka

from ccagent.config.duration import Duration
from ccagent.records.message import Message
from ccagent.transports.kafka import KafkaTransport
from ccagent.transports.kafka_connection import KafkaSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

PASSWORD = "correct horse: battery/staple"
PRODUCE, API_VERSIONS, INIT_PRODUCER_ID = 0, 18, 22
"""Kinds of requests that a cluster can be told to fail, by their API keys."""
_SASL_HANDSHAKE, _SASL_AUTHENTICATE = 17, 36
_UNSUPPORTED_SASL_MECHANISM, _UNSUPPORTED_VERSION, _SASL_AUTHENTICATION_FAILED = 33, 35, 58


class Cluster:
    """A cluster of one mock broker, whose topics `fox.sample` and `fox.sysinfo` have one partition.

    Tests may share one: each begins with `forget`.
    """

    def __init__(self) -> None:
        self._first = {"fox.sample": 0, "fox.sysinfo": 0}
        self._library = _library()
        conf = self._library.rd_kafka_conf_new()
        self._library.rd_kafka_conf_set(conf, b"log_level", b"0", None, 0)
        self._handle = self._library.rd_kafka_new(0, conf, None, 0)
        self._mock = self._library.rd_kafka_mock_cluster_new(self._handle, 1)
        self.place: str = self._library.rd_kafka_mock_cluster_bootstraps(self._mock).decode()
        self.port = int(self.place.rpartition(":")[2])
        for topic in self._first:
            self._library.rd_kafka_mock_topic_create(self._mock, topic.encode(), 1, 1)

    def fail(self, request: int, *codes: int) -> None:
        """Answer the next requests of a kind with these errors; 0 is none."""
        array = (ctypes.c_int * len(codes))(*codes)
        self._library.rd_kafka_mock_push_request_errors_array(
            self._mock, request, len(codes), array
        )

    def spoil(self, topic: str, code: int) -> None:
        """Answer requests for a topic with an error; 0 is none."""
        self._library.rd_kafka_mock_topic_set_error(self._mock, topic.encode(), code)

    def down(self) -> None:
        self._library.rd_kafka_mock_broker_set_down(self._mock, -1)

    def up(self) -> None:
        self._library.rd_kafka_mock_broker_set_up(self._mock, -1)

    def stop(self) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._mock)
        self._library.rd_kafka_destroy(self._handle)

    def forget(self) -> None:
        """Be up, and don't show again what the topics hold now."""
        self.up()
        for topic in self._first:
            self._first[topic] += self.count(topic)

    def count(self, topic: str = "fox.sample") -> int:
        """Return how many messages a topic got, though the mock may have dropped old ones."""
        with self._consumer(topic) as (consumer, partition):
            return consumer.get_watermark_offsets(partition, timeout=60)[1] - self._first[topic]

    def stored(self, topic: str = "fox.sample") -> list[confluent_kafka.Message]:
        """Read all that a topic got, which must be less than 5 MB: the mock holds no more."""
        with self._consumer(topic) as (consumer, partition):
            consumer.assign([partition])
            found: list[confluent_kafka.Message] = []
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                got = consumer.poll(1)
                if got is None:
                    continue
                error = got.error()
                if error is None:
                    found.append(got)
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    return found
                else:
                    assert error.code() != confluent_kafka.KafkaError._AUTO_OFFSET_RESET, error
            raise AssertionError(f"the end of {topic} wasn't reached")

    @contextlib.contextmanager
    def _consumer(
        self, topic: str
    ) -> Generator[tuple[confluent_kafka.Consumer, confluent_kafka.TopicPartition], None, None]:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.place,
                "group.id": "test",
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,
                "fetch.error.backoff.ms": 10,
                "log_level": 0,
            }
        )
        try:
            yield consumer, confluent_kafka.TopicPartition(topic, 0, self._first[topic])
        finally:
            consumer.close()

    def bodies(self, topic: str = "fox.sample") -> list[bytes | None]:
        return [each.value() for each in self.stored(topic)]


class Proxy:
    """Passes on what a client and a cluster say, and adds TLS and logins."""

    def __init__(self, cluster: Cluster, context: ssl.SSLContext | None = None) -> None:
        self.password = PASSWORD
        self.mechanisms = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
        self.logins: list[tuple[str, str]] = []
        self._cluster = cluster
        self._context = context
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._start(self._accept)

    def stop(self) -> None:
        for each in [self._listening, *self._sockets]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
        for each in [self._listening, *self._sockets]:
            each.close()

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        def quietly() -> None:
            with contextlib.suppress(OSError, EOFError):
                work(*arguments)

        self._threads.append(threading.Thread(target=quietly, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listening.accept()
            self._sockets.append(client)
            self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        if self._context is not None:
            client.settimeout(5)
            client = self._context.wrap_socket(client, server_side=True)
            client.settimeout(None)
            self._sockets.append(client)
        broker = socket.create_connection(("127.0.0.1", self._cluster.port))
        self._sockets.append(broker)
        login = _Login(self)
        versions: set[bytes] = set()
        self._start(self._answer, broker, client, versions)
        try:
            while True:
                request = _frame(client)
                key, version, number = struct.unpack(">hh4s", request[:8])
                body = request[10 + struct.unpack(">h", request[8:10])[0] :]
                if key == API_VERSIONS and version:
                    # The client asks again for version 0, the form that _answer knows.
                    _send(client, number + struct.pack(">hi", _UNSUPPORTED_VERSION, 0))
                elif key == _SASL_HANDSHAKE:
                    _send(client, number + login.begin(body[2:].decode()))
                elif key == _SASL_AUTHENTICATE:
                    _send(client, number + login.answer(body[4:].decode()))
                else:
                    if key == API_VERSIONS:
                        versions.add(number)
                    _send(broker, request)
        finally:
            broker.shutdown(socket.SHUT_RDWR)

    def _answer(self, broker: socket.socket, client: socket.socket, versions: set[bytes]) -> None:
        """Return answers in which the broker's port is ours, and in which it knows of logins."""
        host = b"127.0.0.1"
        theirs, ours = (host + struct.pack(">i", p) for p in (self._cluster.port, self.port))
        try:
            while True:
                answer = _frame(broker).replace(theirs, ours)
                if answer[:4] in versions:
                    count = struct.unpack(">i", answer[6:10])[0]
                    more = struct.pack(">6h", _SASL_HANDSHAKE, 0, 1, _SASL_AUTHENTICATE, 0, 0)
                    answer = answer[:6] + struct.pack(">i", count + 2) + more + answer[10:]
                _send(client, answer)
        finally:
            client.shutdown(socket.SHUT_RDWR)


class _Login:
    """The broker's side of SASL on one connection."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._steps: Generator[str, str, None] | None = None
        self._mechanism = ""

    def begin(self, mechanism: str) -> bytes:
        """Answer to the request SaslHandshake."""
        known = self._proxy.mechanisms
        self._mechanism = mechanism
        error = 0 if mechanism in known else _UNSUPPORTED_SASL_MECHANISM
        return struct.pack(">hi", error, len(known)) + b"".join(
            struct.pack(">h", len(name)) + name.encode() for name in known
        )

    def answer(self, said: str) -> bytes:
        """Answer to the request SaslAuthenticate."""
        try:
            if self._mechanism == "PLAIN":
                _, user, password = said.split("\0")
                self._compare(password == self._proxy.password, password)
                self._succeed(user)
                reply = ""
            elif self._steps is None:
                self._steps = self._scram(self._mechanism.removeprefix("SCRAM-"), said)
                reply = next(self._steps)
            else:
                reply = self._steps.send(said)
        except PermissionError as error:
            text = str(error).encode()
            return struct.pack(">hh", _SASL_AUTHENTICATION_FAILED, len(text)) + text + bytes(4)
        return struct.pack(">hhi", 0, -1, len(reply)) + reply.encode()

    def _compare(self, is_right: bool, shown: str) -> None:
        if not is_right:
            raise PermissionError(f"Invalid password {shown}")

    def _succeed(self, user: str) -> None:
        self._proxy.logins.append((user, self._mechanism))

    def _scram(self, sha: str, first: str) -> Generator[str, str, None]:
        """Verify a password as RFC 5802 says."""
        algorithm = sha.lower().replace("-", "")
        bare = first.removeprefix("n,,")
        user, nonce = (part[2:] for part in bare.split(","))
        salt = b"salt"
        challenge = f"r={nonce}server,s={_base64(salt)},i=4096"
        final = yield challenge
        claim, _, proof = final.rpartition(",p=")
        signed = f"{bare},{challenge},{claim}".encode()

        def keyed(key: bytes, text: bytes) -> bytes:
            return hmac.digest(key, text, algorithm)

        salted = hashlib.pbkdf2_hmac(algorithm, self._proxy.password.encode(), salt, 4096)
        client = keyed(salted, b"Client Key")
        signature = keyed(hashlib.new(algorithm, client).digest(), signed)
        expected = bytes(a ^ b for a, b in zip(client, signature, strict=True))
        self._compare(base64.b64decode(proof) == expected, "proof")
        self._succeed(user)
        yield "v=" + _base64(keyed(keyed(salted, b"Server Key"), signed))


class Connections:
    """Makes transports, with the keys that a test wants, and closes them all."""

    def __init__(self) -> None:
        self._made: list[KafkaTransport] = []

    def __call__(self, url: str, *, limit: str = "10s", **keys: Any) -> KafkaTransport:
        settings = KafkaSettings(url=url, time_limit=Duration(limit), **keys)
        self._made.append(KafkaTransport(settings))
        return self._made[-1]

    def close(self) -> None:
        for transport in self._made:
            transport.close()


def message(number: int = 0, kind: str = "sample", body: bytes = b"", prefix: str = "") -> Message:
    """Make a message that is told from others by its number."""
    body = body or b'{"n":%d}' % number
    time_of = 1_700_000_000.25
    return Message("fox", "c1-1", kind, "sonar", time_of, body, prefix, f"id-{number}")


def messages(count: int) -> list[Message]:
    return [message(number) for number in range(count)]


def bodies(batch: list[Message]) -> list[bytes]:
    return [each.body for each in batch]


def _library() -> ctypes.CDLL:
    """The librdkafka that the client has loaded, with its functions for mock clusters."""
    maps = Path("/proc/self/maps").read_text()
    found = re.search(r"/\S*librdkafka\S*", maps)
    assert found, f"{confluent_kafka.__file__} has loaded no librdkafka"
    library = ctypes.CDLL(found[0])
    pointer, text, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
    codes = ctypes.POINTER(ctypes.c_int)
    for name, result, arguments in (
        ("conf_new", pointer, []),
        ("conf_set", ctypes.c_int, [pointer, text, text, text, size]),
        ("new", pointer, [ctypes.c_int, pointer, text, size]),
        ("destroy", None, [pointer]),
        ("mock_cluster_new", pointer, [pointer, ctypes.c_int]),
        ("mock_cluster_destroy", None, [pointer]),
        ("mock_cluster_bootstraps", text, [pointer]),
        ("mock_topic_create", ctypes.c_int, [pointer, text, ctypes.c_int, ctypes.c_int]),
        ("mock_topic_set_error", None, [pointer, text, ctypes.c_int]),
        ("mock_push_request_errors_array", None, [pointer, ctypes.c_int16, size, codes]),
        ("mock_broker_set_down", ctypes.c_int, [pointer, ctypes.c_int32]),
        ("mock_broker_set_up", ctypes.c_int, [pointer, ctypes.c_int32]),
    ):
        function = getattr(library, f"rd_kafka_{name}")
        function.restype, function.argtypes = result, arguments
    return library


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _frame(connected: socket.socket) -> bytes:
    def exactly(size: int) -> bytes:
        content = b""
        while len(content) < size:
            part = connected.recv(size - len(content))
            if not part:
                raise EOFError
            content += part
        return content

    return exactly(struct.unpack(">i", exactly(4))[0])


def _send(connected: socket.socket, content: bytes) -> None:
    connected.sendall(struct.pack(">i", len(content)) + content)
