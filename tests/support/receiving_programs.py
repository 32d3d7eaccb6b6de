"""Programs that receive messages, with their refusals: what they demand, and what breaks them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any, cast

from tests.support.http_server import Handler, Request, Server, say
from tests.support.receiver_schemas import NEWFMT, SLURM_MONITOR, find_refused

CLUSTER = "fox"
PASSWORD = "correct horse"
MIB = 1024 * 1024


class RefusedError(Exception):
    """A program does not take a message."""


class _Receiver(Server):
    """Hands each request to `receive`, which answers with a status, or 0: hangs up."""

    def __init__(self, receive: Callable[[Request], int]) -> None:
        super().__init__()
        self.receive = receive
        self.answers: list[int] = []
        self.RequestHandlerClass = _ReceiverHandler


class _ReceiverHandler(Handler):
    def do_POST(self) -> None:  # noqa: N802 - its name in the base
        owner = self.owner
        assert isinstance(owner, _Receiver)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        host, port = self.client_address[:2]
        request = Request(self.path, dict(self.headers.items()), body, (str(host), port))
        owner.requests.append(request)
        status = owner.receive(request)
        owner.answers.append(status)
        if status:
            say(status, b"refused" if status != 204 else b"")(self)
        else:
            self.close_connection = True


class Jobanalyzer(_Receiver):
    """sonalyze's insert daemon: strict, and it breaks at an envelope without data."""

    def __init__(self) -> None:
        super().__init__(self._insert)
        self.stored: list[dict[str, Any]] = []

    @property
    def jobs(self) -> list[int]:
        """The ids of the jobs that are stored."""
        return [
            job["job_id"]
            for each in self.stored
            for job in each["data"]["attributes"].get("slurm_jobs", ())
        ]

    def _insert(self, request: Request) -> int:
        place, _, kind = request.path.rpartition("/")
        if place != "/api/v1/insert" or kind not in {"sample", "sysinfo", "job", "cluster"}:
            return 404
        if "Content-Encoding" in request.headers:
            return 400
        if len(request.body) > MIB:
            return 413
        envelope = json.loads(request.body)
        if "data" not in envelope:
            return 0
        attributes = envelope["data"]["attributes"]
        login = base64.b64encode(f"{attributes['cluster']}:{PASSWORD}".encode()).decode()
        if request.headers.get("Authorization") != f"Basic {login}":
            return 401
        if find_refused(envelope, NEWFMT):
            return 422
        self.stored.append(envelope)
        return 204


class MetricStore(_Receiver):
    """cc-metric-store: times in seconds; a node has one slot, whatever its `stype`."""

    def __init__(self) -> None:
        super().__init__(self._write)
        self.values: dict[tuple[str, str, str], float] = {}

    def _write(self, request: Request) -> int:
        if "Content-Encoding" in request.headers:
            return 400
        for line in request.body.decode().splitlines():
            series, value, time = line.split(" ")
            if len(time) != len("1700000000"):
                return 400
            name, *pairs = series.split(",")
            tags = dict(pair.split("=") for pair in pairs)
            place = (name, tags["type"], tags.get("type-id", ""))
            self.values[place] = float(value.removeprefix("value=").removesuffix("i"))
        return 200


def import_as_slurm_monitor(body: bytes) -> dict[str, Any]:
    """Import an envelope as slurm-monitor does. Raises RefusedError."""
    envelope: dict[str, Any] = json.loads(body)
    if any(not value for value in _times(envelope)):
        raise RefusedError("an empty time")
    if refused := find_refused(envelope, SLURM_MONITOR):
        raise RefusedError("; ".join(refused))
    return envelope


def _times(value: object) -> Iterator[object]:
    """Yield the values of columns with times."""
    if isinstance(value, dict):
        fields = cast("dict[str, object]", value)
        yield from (
            held
            for name, held in fields.items()
            if name.endswith("_time") or name in {"time", "boot"}
        )
        value = [*fields.values()]
    if isinstance(value, list):
        for each in cast("list[object]", value):
            yield from _times(each)
