"""The example configurations, each with a real server that wants TLS and a login.

Only addresses and directories are replaced.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import ssl
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.certificates import Authority
from tests.support.http_server import Server
from tests.support.kafka_cluster import PASSWORD, Cluster, Proxy
from tests.support.lustre_server import SimulatedTarget
from tests.support.mqtt_broker import Broker, Subscriber
from tests.support.nats_server import Bench, NatsServer
from tests.support.paths import ROOT
from tests.support.schema import validate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nats.aio.client import Client
    from nats.js import JetStreamContext

EXAMPLES = ROOT / "packaging" / "examples"
NAMES = sorted(path.name for path in EXAMPLES.glob("*.toml"))
LOGIN = f'authorization {{ user: ccagent, password: "{PASSWORD}" }}\n'


class Site:
    """A machine with directories of its own, and the address where its servers are."""

    def __init__(self, directory: Path, authority: Authority) -> None:
        self.authority = authority
        self.file = directory / "ccagent.toml"
        self._directory = directory
        for name in ("etc", "lib", "run"):
            (directory / name).mkdir()
        for secret in ("nats-password", "mqtt-password", "ingest-password", "kafka-password",
                       "store-token", "influxdb-token"):  # fmt: skip
            (directory / "etc" / secret).write_text(f"{PASSWORD}\n")
            (directory / "etc" / secret).chmod(0o640)
        (directory / "etc" / "ca.pem").write_text(Path(authority.certificate).read_text())

    def use(self, example: str, **addresses: str) -> None:
        """Take over an example, with other addresses for its hosts (`_` for a dot)."""
        text = (EXAMPLES / example).read_text()
        for host, address in addresses.items():
            name = f"{host}.example.org"
            assert name in text
            text = text.replace(name, address)
        for place in ("etc/ccagent", "var/lib/ccagent", "run/ccagent"):
            text = text.replace(f"/{place}", f"{self._directory}/{place.split('/')[-2]}")
        assert "example.org" not in text
        self.file.write_text(text)
        assert self.run("config", "check", str(self.file)) == f"{self.file}: no errors\n"

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "ccagent", *arguments],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "ccagent: error" not in done.stderr
        return done.stdout

    def sample(self, *agents: str) -> None:
        """Take one sample with each agent and send it; nothing may be left."""
        for agent in agents:
            assert not self.run(*agent.split(), "--once", "--config", str(self.file))
        self.run("outbox", "--config", str(self.file), "flush")
        report = self.run("outbox", "--config", str(self.file)).splitlines()[1:]
        assert report
        assert all(line.split()[-2:] == ["0", "0"] for line in report), report


@pytest.fixture
def site(tmp_path: Path, authority: Authority) -> Site:
    return Site(tmp_path, authority)


@pytest.fixture
def receiver(authority: Authority) -> Iterator[Server]:
    server = Server(authority.context("receiver"))
    yield server
    server.stop()


def stream_server(bench: Bench, authority: Authority) -> dict[str, Any]:
    """Start a server with a stream; give how to log in, with its port."""
    certificate, key = authority.certify("nats")
    tls = f'tls {{ cert_file: "{certificate}", key_file: "{key}" }}\n'
    server = bench.serve(LOGIN + tls)
    context = ssl.create_default_context(cafile=authority.certificate)
    login = {"user": "ccagent", "password": PASSWORD, "tls": context}

    async def add(_: Client, stream: Any) -> None:
        await stream.add_stream(name="fox", subjects=["fox.>"])

    server.ask(add, **login)
    return login | {"server": server}


def stored(server: NatsServer, **login: Any) -> dict[str, bytes]:
    """The last message of each subject of the stream."""

    async def read(_: Client, stream: JetStreamContext) -> dict[str, bytes]:
        count = (await stream.stream_info("fox")).state.messages
        subscription = await stream.subscribe(">", stream="fox", ordered_consumer=True)
        return {m.subject: m.data for m in [await subscription.next_msg(10) for _ in range(count)]}

    return server.ask(read, **login)


def test_a_compute_node_to_nats(site: Site, tmp_path: Path) -> None:
    with Bench(tmp_path / "nats") as bench:
        login = stream_server(bench, site.authority)
        place = f"127.0.0.1:{login['server'].port}"
        site.use("compute-node-nats.toml", nats1=place, nats2=place)
        site.sample("sample", "sysinfo")
        found = stored(**login)
    assert set(found) == {"fox.sample", "fox.sysinfo"}
    validate("SampleEnvelope", found["fox.sample"])
    validate("SysinfoEnvelope", found["fox.sysinfo"])


def test_a_compute_node_to_mqtt(site: Site, tmp_path: Path) -> None:
    certificate, key = site.authority.certify("mqtt")
    broker = Broker(
        tmp_path / "broker",
        passwords={"ccagent": PASSWORD},
        certificate=(site.authority.certificate, certificate, key),
    )
    try:
        subscriber = Subscriber(broker, "fox/+/+", "ccagent", PASSWORD)
        site.use("compute-node-mqtt.toml", mqtt=f"127.0.0.1:{broker.ports['mqtts']}")
        site.sample("sample", "sysinfo")
        (sample,) = subscriber.payloads(1, "fox/sample/")
        (sysinfo,) = subscriber.payloads(1, "fox/sysinfo/")
        subscriber.stop()
    finally:
        broker.kill()
    validate("SampleEnvelope", sample)
    validate("SysinfoEnvelope", sysinfo)


def test_a_compute_node_to_http_and_clustercockpit(site: Site, receiver: Server) -> None:
    site.use("compute-node-clustercockpit.toml", ingest=receiver.place, cc=receiver.place)
    site.sample("sample", "sysinfo", "metrics")
    got = {request.path: request for request in receiver.requests}
    assert set(got) == {
        "/api/v1/insert/sample", "/api/v1/insert/sysinfo", "/api/write/?cluster=fox",
    }  # fmt: skip
    validate("SampleEnvelope", got["/api/v1/insert/sample"].body)
    validate("SysinfoEnvelope", got["/api/v1/insert/sysinfo"].body)
    basic = base64.b64encode(f"fox:{PASSWORD}".encode()).decode()
    assert got["/api/v1/insert/sample"].headers["Authorization"] == f"Basic {basic}"
    points = got["/api/write/?cluster=fox"]
    assert points.headers["Authorization"] == f"Bearer {PASSWORD}"
    assert b"cpu_load,cluster=fox,hostname=" in points.body


def test_a_compute_node_to_kafka(site: Site) -> None:
    cluster = Cluster()
    proxy = Proxy(cluster, site.authority.context("kafka"))
    try:
        site.use("compute-node-kafka.toml", kafka=f"127.0.0.1:{proxy.port}")
        site.sample("sample", "sysinfo")
        (sample,) = cluster.stored("fox.sample")
        (sysinfo,) = cluster.stored("fox.sysinfo")
    finally:
        proxy.stop()
        cluster.stop()
    envelope = validate("SampleEnvelope", sample.value() or b"")
    assert sample.key() == envelope["data"]["attributes"]["node"].encode()
    validate("SysinfoEnvelope", sysinfo.value() or b"")
    assert set(proxy.logins) == {("fox", "PLAIN")}


def test_a_lustre_server(site: Site, receiver: Server, tmp_path: Path) -> None:
    target = SimulatedTarget("fs-OST0000", "obdfilter")
    target.do("11:5000:c1", "write_bytes", 3, 4096, now=1_700_000_000.25)
    target.do("kworker/0:1.0", "write_bytes", 1, 4096, now=1_700_000_000.25)
    dump = tmp_path / "dump"
    dump.write_bytes(target.parameter("2.16", 1_700_000_001.0))
    with Bench(tmp_path / "nats") as bench:
        login = stream_server(bench, site.authority)
        place = f"127.0.0.1:{login['server'].port}"
        site.use("lustre-server.toml", nats=place, influxdb=receiver.place)
        site.sample(f"lustre --input {dump}")
        found = stored(**login)
    records = {each["entry_id"]: each for each in json.loads(found["fox.lustre"])}
    assert set(records) == {"11:5000:c1", "_system_"}
    assert records["11:5000:c1"]["time_series_id"]
    (points,) = receiver.requests
    assert points.path == "/write?db=lustre&precision=s"
    assert b"lustre_write_bytes,cluster=fox,hostname=" in gzip.decompress(points.body)


def test_every_example_is_listed_and_tested() -> None:
    assert sorted(re.findall(r"\]\((.*\.toml)\)", (EXAMPLES / "README.md").read_text())) == NAMES
    assert all(f'"{name}"' in Path(__file__).read_text() for name in NAMES)
