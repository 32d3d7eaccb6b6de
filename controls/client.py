"""Client of the control service: requests over the local socket or NATS, and their output.

Without a service on this node, `list` and `get` read the machine directly.
"""

from __future__ import annotations

import os
import re
import socket
import time
from abc import ABC, abstractmethod
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ccagent.controls.control import NO_DEVICE, NODE_DEVICE, Hwthread, ListedControl
from ccagent.controls.messages import encode_line, read_lines
from ccagent.errors import ConfigurationError, ControlError, EncodingError
from ccagent.log import printable
from ccagent.records.line_protocol import Line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ccagent.controls.nats_requests import Outgoing
    from ccagent.controls.settings import ControlSetup

_NAME = re.compile(r"([A-Za-z0-9_.-]{1,200})(?:@(all|[0-9A-Fa-f:.]{1,40}))?")
_ALL = "all"
_CARDS = {"nvidia_gpu", "amd_gpu"}
_MOST_CARDS = 16
"""Number of cards for `all`: answers do not contain the number of cards of a node."""
_LEVEL = "level"
_NODE = {"type": "node", "type-id": NODE_DEVICE}
_CONNECT_WITHIN = 10.0


class Answered(NamedTuple):
    """One answer. node: short name of the node. is_error: level ERROR, or no answer."""

    node: str
    subject: str
    text: str
    is_error: bool


class _Sender(msgspec.Struct, frozen=True):
    sender: str
    puts: int = 0
    refused: int = 0
    log_lines: int = 0


class _Document(msgspec.Struct, frozen=True):
    """What nodes answer to `controls`, `topology` or `status`."""

    controls: list[ListedControl] = []
    hwthreads: list[Hwthread] = []
    senders: list[_Sender] = []


class Client(ABC):
    """Carries requests to nodes."""

    nodes: Sequence[str]
    """Short names of the nodes; empty: all nodes that answer."""

    @abstractmethod
    def ask(self, lines: Sequence[Line]) -> list[Line]:
        """Send lines and return the answers within the time limit. Raise CcagentError."""


class LocalClient(Client):
    """The service of this node; without a service, the machine itself."""

    def __init__(self, setup: ControlSetup, seconds: float) -> None:
        self._setup = setup
        self._seconds = seconds
        self._node = setup.make_node()
        self.nodes = [self._node.hostname.partition(".")[0]]

    def ask(self, lines: Sequence[Line]) -> list[Line]:
        """Send lines to the socket. Without a service, answer GET here."""
        path = self._setup.settings.socket
        has_put = any(line.tags.get("method") == "PUT" for line in lines)
        body = "".join(f"{encode_line(line)}\n" for line in lines).encode()
        try:
            if has_put or os.access(path, os.W_OK):
                return read_lines(ask_locally(path, body, max(self._seconds, 5.0)))
        except ControlError:
            if has_put and not any(line.measurement == "restore" for line in lines):
                raise
        from ccagent.controls.responder import answer_directly

        return answer_directly(self._setup, self._node, lines)


def ask_locally(path: str, body: bytes, seconds: float) -> bytes:
    """Return the answers of this node's service. Raise ControlError if none answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(seconds)
        try:
            connection.connect(path)
            connection.sendall(body)
            connection.shutdown(socket.SHUT_WR)
            parts: list[bytes] = []
            while part := connection.recv(65536):
                parts.append(part)
        except OSError as error:
            reason = error.strerror or "no answer"
            raise ControlError(
                f"{path}: {reason}: is ccagent-control.service running, and are you root?"
            ) from error
    return b"".join(parts)


class NatsClient(Client):
    """Nodes behind a NATS server."""

    def __init__(
        self, setup: ControlSetup, nodes: Sequence[str], subject: str, seed: str, seconds: float
    ) -> None:
        self.nodes = nodes
        self._settings = setup.settings
        self._subject = subject
        self._seed = seed
        self._seconds = seconds

    def ask(self, lines: Sequence[Line]) -> list[Line]:
        """Publish one message per node, or one for all. Wait for the expected number of answers."""
        from ccagent.controls.nats_requests import connect_client
        from ccagent.errors import RetryableError

        connection = connect_client(self._settings, "control command", _CONNECT_WITHIN)
        try:
            connection.publish([*self._messages(lines, f"{connection.inbox}.1")])
            wanted = len(lines) * len(self.nodes)
            answers: list[Line] = []
            deadline = time.monotonic() + self._seconds
            while not wanted or len(answers) < wanted:
                message = connection.receive(max(0.0, deadline - time.monotonic()))
                if message is None:
                    break
                if message.headers and message.headers.get("Status") == "503":
                    raise RetryableError(
                        f"{connection.session.place}: no service listens on the subject "
                        f"{self._subject!r}"
                    )
                answers += read_lines(message.data)
            return answers
        finally:
            connection.close()

    def _messages(self, lines: Sequence[Line], reply: str) -> Iterator[Outgoing]:
        for node in self.nodes or [""]:
            named = {"hostname": node} if node else {}
            body = "".join(
                encode_line(msgspec.structs.replace(line, tags=line.tags | named)) + "\n"
                for line in lines
            ).encode()
            headers = None
            if self._seed:
                from ccagent.net.signatures import sign

                headers = sign(self._seed, self._subject, body, time.time())
            yield self._subject, body, headers, reply


class CommandLine:
    """Builds and sends requests, and prints answers. Each method returns True without errors."""

    def __init__(self, client: Client, *, as_json: bool, print_line: Callable[[str], Any]) -> None:
        self._client = client
        self._as_json = as_json
        self._print = print_line

    def show_list(self) -> bool:
        """Print the controls of answer node."""
        answered = self._ask([_line("controls", _NODE)])
        if self._as_json:
            return self._show(answered)
        groups: dict[str, list[str]] = {}
        for answer in answered:
            groups.setdefault(answer.text, []).append(answer.node)
        for text, nodes in groups.items():
            rows = [("NAME", "TYPE", "METHODS", "DESCRIPTION")]
            rows += [
                (f"{c.category}.{c.name}", c.device_type, c.methods, c.description)
                for c in _decode(text).controls
            ]
            if len(rows) == 1:
                rows.append((text[:200], "", "", ""))
            if len(answered) > 1:
                self._print(f"# {', '.join(sorted(nodes))}")
            self._print_table(rows)
        return not any(answer.is_error for answer in answered)

    def show_status(self) -> bool:
        """Print the dearest senders of answer node."""
        answered = self._ask([_line("status", _NODE)])
        if self._as_json or any(answer.is_error for answer in answered):
            return self._show(answered)
        rows = [("NODE", "SENDER", "PUTS", "REFUSED", "LOGGED")]
        for answer in sorted(answered, key=_natural):
            rows += [
                (answer.node, s.sender, str(s.puts), str(s.refused), str(s.log_lines))
                for s in _decode(answer.text).senders
            ]
        self._print_table(rows)
        return True

    def get(self, names: Sequence[str]) -> bool:
        """Print the values of controls; without a device, of all devices."""
        return self._each(names, "GET", {}, {})

    def set(self, assignments: Sequence[str], *, lease: str | None, is_dry: bool) -> bool:
        """Set controls."""
        tags = {} if lease is None else {"lease": lease}
        if is_dry:
            tags["dry-run"] = "true"
        values: dict[str, str] = {}
        for assignment in assignments:
            name, equals, value = assignment.partition("=")
            if not equals or not value:
                raise ConfigurationError(f"{assignment}: expected NAME[@DEVICE]=VALUE")
            values[name] = value
        return self._each(list(values), "PUT", values, tags)

    def restore(self, name: str, job: str) -> bool:
        """Restore values."""
        tags = {"method": "PUT", **_NODE, **({"job": job} if job else {})}
        return self._show(self._ask([_line("restore", tags, name)]))

    def _each(
        self, names: Sequence[str], method: str, values: dict[str, str], more: dict[str, str]
    ) -> bool:
        wanted = [_split(name) for name in names]
        listed, devices = self._layout(any(device == _ALL for _, device in wanted))
        lines: list[Line] = []
        for full, (name, device) in zip(names, wanted, strict=True):
            control = listed.get(name)
            device_type = "node" if control is None else control.device_type
            numbers = devices(device_type) if device == _ALL else [device]
            for number in numbers:
                tags = {"method": method, "type": device_type, "type-id": number, **more}
                lines.append(_line(name, tags, values.get(full, "")))
        if not lines:
            raise ConfigurationError("no known device of this type: add one with @DEVICE")
        answers = self._ask(lines)
        if any(device == _ALL for _, device in wanted) and _CARDS & {x.tags["type"] for x in lines}:
            answers = [answer for answer in answers if not answer.text.startswith(NO_DEVICE)]
        return self._show(answers)

    def _layout(
        self, needs_devices: bool
    ) -> tuple[dict[str, ListedControl], Callable[[str], list[str]]]:
        """Request the list of controls, and the devices of the first node."""
        lines = [_line("controls", _NODE)]
        if needs_devices:
            lines.append(_line("topology", _NODE))
        listed: dict[str, ListedControl] = {}
        threads: list[Hwthread] = []
        for line in self._client.ask(lines):
            if line.tags.get(_LEVEL) == "ERROR" or not isinstance(line.value, str):
                continue
            document = _decode(line.value)
            threads = threads or document.hwthreads
            for control in document.controls:
                listed.setdefault(f"{control.category}.{control.name}", control)
        for control in list(listed.values()):
            listed.setdefault(control.name, control)
        return listed, partial(_devices_of, threads)

    def _ask(self, lines: Sequence[Line]) -> list[Answered]:
        """Return the answers. Missing ones become errors of their nodes."""
        answered = [_answered(line) for line in self._client.ask(lines) if line.field == "log"]
        counts = Counter(answer.node for answer in answered)
        for node in self._client.nodes:
            if counts[node] < len(lines):
                text = f"no answer to {len(lines) - counts[node]} of {len(lines)}"
                answered.append(Answered(node, "", text, is_error=True))
        return answered

    def _show(self, answered: Sequence[Answered]) -> bool:
        if self._as_json:
            for answer in answered:
                self._print(msgspec.json.encode(answer._asdict()).decode())
        else:
            rows = [("NODE", "CONTROL", "LEVEL", "ANSWER")]
            rows += [
                (answer.node, answer.subject, "ERROR" if answer.is_error else "INFO", answer.text)
                for answer in sorted(answered, key=_natural)
            ]
            self._print_table(rows)
        return bool(answered) and not any(answer.is_error for answer in answered)

    def _print_table(self, rows: Sequence[tuple[str, ...]]) -> None:
        rows = [tuple(map(printable, row)) for row in rows]
        widths = [min(60, max(map(len, column))) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            self._print("  ".join(cells).rstrip())


def find_client(
    setup: ControlSetup, *, nodes: str | None, subject: str | None, seed_file: str | None,
    seconds: float,
) -> Client:  # fmt: skip
    """Return the connection to nodes for the options. Raise ConfigurationError."""
    if nodes is None:
        if subject or seed_file:
            raise ConfigurationError("--subject and --sign are for --node")
        return LocalClient(setup, seconds)
    if not setup.settings.url:
        raise ConfigurationError(f"{setup.path}: controls.url: not set: --node needs NATS")
    from ccagent.errors import UnparsableError
    from ccagent.machine.hostlist import expand
    from ccagent.net.signatures import read_seed

    try:
        names = [] if nodes == _ALL else [name.partition(".")[0] for name in expand(nodes)]
    except UnparsableError as error:
        raise ConfigurationError(f"--node: {error}") from error
    if nodes != _ALL and not names:
        raise ConfigurationError("--node: no node is named")
    seed = read_seed(seed_file) if seed_file else ""
    chosen = subject or setup.settings.subjects[0]
    return NatsClient(setup, list(dict.fromkeys(names)), chosen, seed, seconds)


def _line(measurement: str, tags: dict[str, str], value: str = "") -> Line:
    tags = {"method": "GET", **tags}
    line = Line(measurement, tags, "control", value, time.time_ns())
    try:
        encode_line(line)
    except EncodingError as error:
        raise ConfigurationError(str(error)) from error
    return line


def _split(text: str) -> tuple[str, str]:
    match = _NAME.fullmatch(text)
    if match is None:
        raise ConfigurationError(f"{text!r}: expected NAME or NAME@DEVICE")
    return match[1], match[2] or _ALL


def _answered(line: Line) -> Answered:
    subject = line.measurement
    if line.tags.get("type", "node") != "node":
        subject += f"@{line.tags.get('type-id', '')}"
    text = line.value if isinstance(line.value, str) else ""
    return Answered(line.tags.get("hostname", ""), subject, text, line.tags.get(_LEVEL) == "ERROR")


def _decode(text: str) -> _Document:
    """Decode the document of a node; an empty one for other text."""
    try:
        return msgspec.json.decode(text, type=_Document)
    except (msgspec.MsgspecError, RecursionError):
        return _Document()


def _devices_of(threads: list[Hwthread], device_type: str) -> list[str]:
    """Return the devices of a type in the topology."""
    if device_type in _CARDS:
        return [str(number) for number in range(_MOST_CARDS)]
    keys = {"hwthread": "cpu_id", "socket": "socket_id", "numa": "numa_id"}
    if device_type == "die":
        dies = {(thread.socket_id, thread.die_id) for thread in threads}
        return [str(number) for number in range(len(dies))]
    key = keys.get(device_type, "")
    if not key:
        return [NODE_DEVICE]
    return [str(n) for n in sorted({int(getattr(thread, key)) for thread in threads})]


def _natural(answered: Answered) -> list[Any]:
    parts = re.split(r"([0-9]+)", f"{answered.node} {answered.subject}")
    return [(int(part[:18]), part) if i % 2 else part for i, part in enumerate(parts)]
