"""What packaging/fleet.md has servers do, done by real ones: leaf nodes, rights of nodes."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.documents import blocks
from tests.support.mqtt_broker import Broker, Subscriber
from tests.support.nats_server import NatsServer, new_seed, public_key
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.running import CCAGENT

FLEET = ROOT / "packaging" / "fleet.md"


def configuration(name: str) -> str:
    """A configuration as the document has it."""
    (block,) = [block for block in blocks(FLEET) if block.name == name]
    return block.text


def without_listen(text: str) -> str:
    """Without its first line: the tests choose another port."""
    first, _, rest = text.partition("\n")
    assert first.startswith("listen:")
    return rest


def send(url: str, *options: str, node: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [*CCAGENT, "sample", "--once", "--cluster", "fox", "--sink", url, *options]
    if node is not None:
        command += ["--config", str(node)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_stream_behind_a_leaf_node_acknowledges(tmp_path: Path) -> None:
    port = free_port()
    hub_text = without_listen(configuration("hub.conf"))
    hub_text = hub_text.replace("0.0.0.0:7422", f"127.0.0.1:{port}")
    hub_text = re.sub(r"^jetstream .*\n", "", hub_text, flags=re.MULTILINE)
    leaf_text = without_listen(configuration("leaf.conf"))
    leaf_text = leaf_text.replace("nats1.example.org:7422", f"127.0.0.1:{port}")
    hub = NatsServer(tmp_path / "hub", hub_text)
    leaf = NatsServer(tmp_path / "leaf", leaf_text, with_jetstream=False)
    try:
        hub.add_stream("fox.>")
        deadline = time.monotonic() + 60
        while (done := send(leaf.url, "--sink-set", "jetstream=true")).returncode:
            assert time.monotonic() < deadline, done.stderr
        assert [subject for subject, _, _ in hub.stored()] == ["fox.sample"]
        hub.kill()
        assert send(leaf.url, "--sink-set", "jetstream=true").returncode == 1
    finally:
        leaf.kill()
        hub.kill()


@pytest.mark.parametrize(("cluster", "status"), [("fox", 0), ("wolf", 1)])
def test_a_node_may_send_for_its_cluster_alone(tmp_path: Path, cluster: str, status: int) -> None:
    seed = new_seed()
    (tmp_path / "nkey").write_text(f"{seed}\n")
    (tmp_path / "nkey").chmod(0o600)
    text = re.sub(r"U[A-Z2-7]{55}", public_key(seed), configuration("nats.conf"))
    admin = '    { user: "admin", password: "x" }\n  ]'
    server = NatsServer(tmp_path / "server", text.replace("  ]", admin, 1))
    login = {"user": "admin", "password": "x"}
    try:

        async def add(_: object, stream: object) -> None:
            await stream.add_stream(name="all", subjects=["fox.>", "wolf.>"])  # type: ignore[attr-defined]

        server.ask(add, **login)
        options = ["jetstream=true", f"nkey-file={tmp_path}/nkey", "time-limit=3s"]
        done = send(
            server.url, "--cluster", cluster, *(w for o in options for w in ("--sink-set", o))
        )
        assert done.returncode == status, done.stderr
        if status:
            assert "may not publish to the subject 'wolf.sample'" in done.stderr
    finally:
        server.kill()


def test_a_node_speaks_for_itself_alone(tmp_path: Path) -> None:
    acl = tmp_path / "acl"
    acl.write_text(configuration("mosquitto.acl") + "user reader\ntopic read #\n")
    acl.chmod(0o600)
    broker = Broker(tmp_path / "broker", f"acl_file {acl}", passwords={"c1-1": "x", "reader": "x"})
    (tmp_path / "password").write_text("x\n")
    (tmp_path / "password").chmod(0o600)
    try:
        reader = Subscriber(broker, "#", "reader", "x")
        for name, status in (("c1-1", 0), ("c1-2", 1)):
            node = tmp_path / f"{name}.toml"
            node.write_text(f'hostname = "{name}"\n')
            keys = ("user=c1-1", f"password-file={tmp_path}/password")
            options = [word for key in keys for word in ("--sink-set", key)]
            done = send(broker.url(), *options, node=node)
            assert done.returncode == status, done.stderr
        assert "not authorized" in done.stderr.lower()
        assert reader.payloads(1, "fox/sample/c1-1")
        assert not [got for got in reader.got if got.topic.endswith("c1-2")]
        reader.stop()
    finally:
        broker.kill()
