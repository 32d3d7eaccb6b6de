"""Clients of a soak: legitimate ones, which measure, and a hostile one of each kind."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import socket
import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from ccagent.net.signatures import sign
from tests.integration.controls.conftest import ControlClient
from tests.support.jobstats_store import zeros

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.soak_site import SoakSite

_HOSTS = 30
_HUGE = 64 * 2**20
_PUT = 'os.swappiness,hostname=n1,method=PUT,type=node,type-id=0 control="{}" {}'


class SoakClients:
    """Threads that run until `stop`; each repeats its request after a pause.

    seconds: durations of legitimate requests by kind. failures: by kind. acknowledged: values by
    metric, host and second that the store has answered with 200.
    """

    def __init__(self, site: SoakSite, hosts: str) -> None:
        """hosts: first letter of the host names, so that no other clients write to these."""
        self._site = site
        self._hosts = hosts
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._ends: list[Callable[[], object]] = []
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.failures: dict[str, list[str]] = defaultdict(list)
        self.acknowledged: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
        self.statuses: set[int] = set()
        """Statuses of the responses to new series of invented nodes."""
        self.attacks: dict[str, int] = defaultdict(int)

    def start_legitimate(self) -> None:
        """Scrape, write, query, post to the jobstats store, and set a control, signed."""
        self._repeat("scrape", self._scrape, 1.0)
        self._repeat("write", self._write, 0.1)
        self._repeat("query", self._query, 0.2)
        self._repeat("jobstats", self._post_jobstats, 0.5)
        client = self._connect()
        self._repeat("control", lambda number: self._set(client, number), 1.0)

    def start_hostile(self) -> None:
        """Start one client of each kind."""
        for port in (self._site.exporter_port, self._site.metrics.port, self._site.jobstats.port):
            self._attack(f"slow {port}", self._dawdle(port), 0.2)
        self._attack("upgrade", self._upgrade, 0.2)
        self._attack("series", self._flood_series, 0.5)
        client = self._connect()
        self._attack("unsigned", lambda n: self._put_unsigned(client, n), 0.02)
        self._attack("nats", lambda n: self._send_bad(client, n), 0.02)
        broker = mqtt.Client(CallbackAPIVersion.VERSION2)
        broker.connect("127.0.0.1", self._site.broker.ports["mqtt"])
        broker.loop_start()
        self._ends += [broker.disconnect, broker.loop_stop]
        self._attack("fast", lambda n: self._send_task(broker, n), 0.02)
        self._attack("huge", self._send_huge, 2.0)

    def stop(self) -> None:
        """End all threads."""
        self._stopping.set()
        for each in self._threads:
            each.join(60)
        for end in self._ends:
            end()

    def _connect(self) -> ControlClient:
        client = ControlClient(self._site.nats.url)
        self._ends.append(client.close)
        return client

    def _repeat(
        self, kind: str, act: Callable[[int], None], pause: float, *, is_hostile: bool = False
    ) -> None:
        def run() -> None:
            for number in itertools.count():
                begin = time.monotonic()
                try:
                    act(number)
                    if not is_hostile:
                        self.seconds[kind].append(time.monotonic() - begin)
                except (OSError, http.client.HTTPException, AssertionError) as error:
                    if not is_hostile:
                        self.failures[kind].append(repr(error)[:200])
                if is_hostile:
                    self.attacks[kind] += 1
                if self._stopping.wait(pause):
                    return

        self._threads.append(threading.Thread(target=run, name=kind, daemon=True))
        self._threads[-1].start()

    def _attack(self, kind: str, act: Callable[[int], None], pause: float) -> None:
        self._repeat(kind, act, pause, is_hostile=True)

    def _scrape(self, _: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._site.exporter_port, timeout=20)
        with contextlib.closing(connection):
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            body = answer.read()
            assert answer.status == 200, answer.status
            assert b"node_load1 " in body

    def _store(self, metric: str, number: int, headers: dict[str, str]) -> int:
        host, moment, value = f"{self._hosts}{number % _HOSTS}", int(time.time()), float(number)
        line = f"{metric},hostname={host},type=node value={value} {moment}\n"
        answer = self._site.metrics.ask("POST", "/api/write/?cluster=fox", line, headers)
        if answer.status == 200:
            self.acknowledged[metric, host][moment] = value
        return answer.status

    def _write(self, number: int) -> None:
        status = self._store("soak", number, {})
        assert status == 200, status

    def _query(self, number: int) -> None:
        now = int(time.time())
        self._site.metrics.query(
            now - 60, now, {"metric": "soak", "host": f"{self._hosts}{number % _HOSTS}"}
        )

    def _post_jobstats(self, number: int) -> None:
        answer = self._site.jobstats.post([zeros(60 + number, entry_id=f"5:{1000 + number}:c1")])
        assert answer.status in {200, 201, 204}, (answer.status, answer.body[:200])

    def _set(self, client: ControlClient, number: int) -> None:
        body = _PUT.format(20 + number % 50, time.time_ns())
        headers = sign(self._site.seed, "cc-control", body.encode(), time.time())
        answers = client.ask(body, headers=headers, seconds=10)
        assert answers, "no answer"
        assert answers[0].tags["level"] == "INFO", answers[0].value

    def _dawdle(self, port: int) -> Callable[[int], None]:
        opened: list[socket.socket] = []

        def end() -> None:
            for each in opened:
                each.close()

        self._ends.append(end)

        def dawdle(_: int) -> None:
            while len(opened) > 60:
                opened.pop(0).close()
            opened.append(socket.create_connection(("127.0.0.1", port), 5))
            opened[-1].sendall(b"POST /api/write/ HTTP/1.1\r\nA")

        return dawdle

    def _upgrade(self, number: int) -> None:
        headers = {
            "Connection": "Upgrade, HTTP2-Settings",
            "Upgrade": "h2c",
            "HTTP2-Settings": "AA",
        }
        self._store("upgraded", number, headers)

    def _flood_series(self, number: int) -> None:
        moment = int(time.time())
        lines = "".join(
            f"flood,hostname=f{number},type=hwthread,type-id={each} value=1 {moment}\n"
            for each in range(5000)
        )
        # An address of its own: the limits of a sender are not those of the others.
        attacker = http.client.HTTPConnection(
            "127.0.0.1", self._site.metrics.port, timeout=20, source_address=("127.0.0.2", 0)
        )
        with contextlib.closing(attacker):
            attacker.request("POST", "/api/write/?cluster=fox", lines)
            self.statuses.add(attacker.getresponse().status)

    def _put_unsigned(self, client: ControlClient, number: int) -> None:
        body = _PUT.format(number % 100, time.time_ns())
        client.send("cc-control", body)

    def _send_bad(self, client: ControlClient, number: int) -> None:
        client.send("fox.lines", f"bad{number} line {number}")

    def _send_task(self, broker: mqtt.Client, number: int) -> None:
        broker.publish(f"fast/agent/c1/task/bad{number}", f"task: {{bad: {number}")

    def _send_huge(self, number: int) -> None:
        store = (self._site.metrics, self._site.jobstats)[number % 2]
        path = "/api/write/?cluster=fox" if number % 2 == 0 else "/lustre"
        with socket.create_connection(("127.0.0.1", store.port), 5) as sender:
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {_HUGE}\r\n\r\n"
            sender.sendall(head.encode())
            for _ in range(_HUGE // 2**16):
                sender.sendall(b"x" * 2**16)
            sender.recv(1)


def find_lost(site: SoakSite, clients: SoakClients) -> list[Any]:
    """Return what the store has acknowledged and does not have: metric, host, second."""
    lost: list[Any] = []
    for (metric, host), values in clients.acknowledged.items():
        begin, end = min(values), max(values) + 1
        (results,) = site.metrics.query(begin, end, {"metric": metric, "host": host})
        data: list[float | None] = results[0].get("data", []) if results else []
        begin = results[0]["from"] if results else begin
        found = {begin + number: value for number, value in enumerate(data)}
        lost += [(metric, host, m) for m, value in values.items() if found.get(m) != value]
    return lost
