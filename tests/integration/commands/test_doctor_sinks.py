"""`ccagent doctor` and sinks: what an administrator is told of each way in which one fails."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from ccagent.doctor.sinks import hide_secrets
from tests.support.certificates import Authority
from tests.support.http_server import Handler, Server
from tests.support.kafka_cluster import Cluster
from tests.support.mqtt_broker import Broker, Pretender
from tests.support.nats_server import Bench
from tests.support.ports import free_port
from tests.support.running import CCAGENT

PASSWORD = "correct horse: battery/staple"


class Head(Handler):
    """Answers HEAD too: to those who know the password, with a clock of its own."""

    behind = 0.0

    def do_HEAD(self) -> None:  # noqa: N802 - its name in the base
        wanted = "Basic " + base64.b64encode(f"fox:{PASSWORD}".encode()).decode()
        self.send_response(405 if self.headers["Authorization"] == wanted else 401)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def date_time_string(self, timestamp: float | None = None) -> str:
        return formatdate(time.time() - self.behind, usegmt=True)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    made: list[Broker] = []

    def start(*arguments: Any, **keys: Any) -> Broker:
        made.append(Broker(tmp_path / f"broker{len(made)}", *arguments, **keys))
        return made[-1]

    yield start
    for broker in made:
        broker.kill()


class Told:
    """The doctor's answer for a configuration of one agent and these sinks."""

    def __init__(self, directory: Path, sinks: str, *options: str) -> None:
        file = directory / "ccagent.toml"
        file.write_text(f'cluster = "fox"\n[agents.sample]\nevery = "1m"\n{sinks}')
        begin = time.monotonic()
        result = subprocess.run(
            [*CCAGENT, "doctor", "--json", "--config", str(file), *options],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        self.seconds = time.monotonic() - begin
        self.code, self.output = result.returncode, result.stdout + result.stderr
        self.findings = {each["subject"]: each for each in json.loads(result.stdout)}

    def sink(self, name: str = "backend") -> dict[str, Any]:
        found: dict[str, Any] = self.findings[f"sink {name}"]
        assert found["stops"] == ([] if found["state"] == "good" else [f"sink {name}"])
        return found


def secret(directory: Path, text: str = PASSWORD) -> str:
    path = directory / "password"
    path.write_text(text + "\n")
    path.chmod(0o600)
    return str(path)


def backend(url: str, more: str = "") -> str:
    return f'[sinks.backend]\nurl = "{url}"\n{more}\n'


def test_http_that_answers_gets_no_message(server: Server, tmp_path: Path) -> None:
    told = Told(tmp_path, backend(f"http://{server.place}/in?token=hidden"))
    found = told.sink()
    assert (told.code, found["state"]) == (0, "good")
    place = f"http://{server.place}/in"
    assert found["found"] == f"{place}: it answers HEAD with 501 Not Implemented"
    assert server.requests == []
    assert told.findings["clock, against sink backend"]["state"] == "good"
    assert "hidden" not in told.output


def test_http_with_password(server: Server, tmp_path: Path) -> None:
    server.RequestHandlerClass = Head
    login = f'user = "fox"\npassword-file = "{secret(tmp_path)}"'
    told = Told(tmp_path, backend(f"http://{server.place}/in", login))
    assert (told.code, told.sink()["state"]) == (0, "good")
    assert told.sink()["found"].endswith("405 Method Not Allowed")
    secret(tmp_path, "wrong")
    told = Told(tmp_path, backend(f"http://{server.place}/in", login))
    assert told.code == 1
    assert "401 Unauthorized: the login is refused" in told.sink()["found"]
    assert "password-file" in told.sink()["fix"]
    assert "wrong" not in told.output


def test_http_with_another_time(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.RequestHandlerClass = Head
    monkeypatch.setattr(Head, "behind", 90.0)
    login = f'user = "fox"\npassword-file = "{secret(tmp_path)}"'
    told = Told(tmp_path, backend(f"http://{server.place}/in", login))
    found = told.findings["clock, against sink backend"]
    assert found["state"] == "problem"
    # The header Date has whole seconds.
    assert re.fullmatch("this clock is (89|90|91) s ahead of the other", found["found"])
    assert told.code == 0


def test_what_is_in_a_url_of_the_command_line_stays_hidden() -> None:
    url = f"http://127.0.0.1:{free_port()}/in?token=hidden"
    result = subprocess.run(
        [*CCAGENT, "doctor", "--sink", url], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 1
    assert "sink --sink http://127.0.0.1:" in result.stdout
    assert "hidden" not in result.stdout + result.stderr


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("stdout:", "stdout"),
        ("dir:/data/a@b", "dir:/data/a@b"),
        ("http://host/in?token=hidden", "http://host/in"),
        ("nats://fox:hidden@host,fox:hidden@other", "nats://other"),
    ],
)
def test_urls_are_shown_without_secrets(url: str, said: str) -> None:
    assert hide_secrets(url) == said


def test_what_is_down_and_what_has_no_name(tmp_path: Path) -> None:
    told = Told(
        tmp_path,
        backend(f"http://127.0.0.1:{free_port()}/")
        + f'[sinks.stream]\nurl = "nats://127.0.0.1:{free_port()}"\n'
        + f'[sinks.broker]\nurl = "mqtt://127.0.0.1:{free_port()}"\n'
        + '[sinks.nowhere]\nurl = "http://nowhere.invalid/"\n'
        + f'[sinks.tree]\nurl = "dir:{tmp_path}/tree"\n',
    )
    assert told.code == 1
    for name in ("backend", "stream", "broker"):
        assert "refused" in told.sink(name)["found"].lower(), name
        assert "start the server" in told.sink(name)["fix"]
    assert "does not resolve" in told.sink("nowhere")["found"]
    assert "name servers" in told.sink("nowhere")["fix"]
    assert told.sink("tree")["state"] == "good"
    assert not (tmp_path / "tree").exists()


def test_nats(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        server = bench.serve(f'authorization {{ user: "fox", password: "{PASSWORD}" }}\n')
        login = f'user = "fox"\npassword-file = "{secret(tmp_path)}"'
        told = Told(tmp_path, backend(server.url, login))
        assert (told.code, told.sink()["state"]) == (0, "good")
        assert told.sink()["found"] == f"{server.url}: it accepts the login"
        secret(tmp_path, "wrong")
        told = Told(tmp_path, backend(server.url, login))
        assert told.code == 1
        assert "password-file" in told.sink()["fix"]
        assert "wrong" not in told.output


def test_jetstream(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        server = bench.serve()
        told = Told(tmp_path, backend(server.url, "jetstream = true"))
        assert told.code == 1
        assert told.sink()["found"] == f"{server.url}: no stream takes the subject 'fox.sample'"
        assert "nats stream add" in told.sink()["fix"]
        server.add_stream("fox.>")
        told = Told(tmp_path, backend(server.url, "jetstream = true"))
        assert (told.code, told.sink()["state"]) == (0, "good")
        assert told.sink()["found"].endswith("stream 'all' takes the subject 'fox.sample'")
        assert server.count() == 0
        plain = bench.serve(with_jetstream=False)
        told = Told(tmp_path, backend(plain.url, "jetstream = true"))
        assert (told.code, told.sink()["found"]) == (1, f"{plain.url}: no JetStream for this user")


def test_jetstream_that_this_user_may_not_ask(tmp_path: Path) -> None:
    allowed = 'publish: ["fox.>"], subscribe: ["_INBOX.>"]'
    user = f'user: "fox", password: "{PASSWORD}", permissions: {{ {allowed} }}'
    with Bench(tmp_path) as bench:
        server = bench.serve(f"authorization {{ users: [ {{ {user} }} ] }}\n")
        login = f'user = "fox"\npassword-file = "{secret(tmp_path)}"\njetstream = true'
        told = Told(tmp_path, backend(server.url, login))
        assert (told.code, told.sink()["state"]) == (0, "good")
        assert told.sink()["found"].endswith("not the question which stream takes 'fox.sample'")
        assert told.seconds < 60


def test_nats_that_is_called_otherwise(tmp_path: Path, authority: Authority) -> None:
    certificate, key = authority.certify("node")
    with Bench(tmp_path) as bench:
        server = bench.serve(f'tls {{ cert_file: "{certificate}", key_file: "{key}" }}\n')
        ca = f'ca-file = "{authority.certificate}"'
        told = Told(tmp_path, backend(f"tls://127.0.0.1:{server.port}", ca))
        assert (told.code, told.sink()["state"]) == (0, "good")
        told = Told(tmp_path, backend(f"tls://localhost:{server.port}", ca))
        assert told.code == 1
        assert "localhost" in told.sink()["found"]
        assert "the name in url that its certificate is for" in told.sink()["fix"]
        told = Told(tmp_path, backend(f"tls://127.0.0.1:{server.port}"))
        assert "ca-file" in told.sink()["fix"]


def test_mqtt(tmp_path: Path, serve: Callable[..., Broker]) -> None:
    broker = serve(passwords={"fox": PASSWORD})
    login = f'user = "fox"\npassword-file = "{secret(tmp_path)}"'
    for protocol in ("5", "3.1.1"):
        told = Told(tmp_path, backend(broker.url(), f'{login}\nprotocol = "{protocol}"'))
        assert (told.code, told.sink()["state"]) == (0, "good")
    # MQTT 5 and 3.1.1 (mosquitto calls it 2), and a session that the broker forgets.
    assert "-doctor (p5, c1, " in broker.log
    assert "-doctor (p2, c1, " in broker.log
    assert "PUBLISH" not in broker.log
    assert "Will message" not in broker.log
    secret(tmp_path, "wrong")
    told = Told(tmp_path, backend(broker.url(), login))
    assert told.code == 1
    assert "password-file" in told.sink()["fix"]


def test_a_daemon_that_is_connected_stays_so(tmp_path: Path, serve: Callable[..., Broker]) -> None:
    broker = serve()
    sink = backend(broker.url(), 'client-id = "one"')
    file = tmp_path / "daemon.toml"
    file.write_text(f'[agents.sample]\nevery = "1s"\n{sink}')
    with subprocess.Popen([*CCAGENT, "run", "--config", str(file)]) as daemon:
        try:
            deadline = time.monotonic() + 60
            while "as one (" not in broker.log:
                assert time.monotonic() < deadline, broker.log
                time.sleep(0.05)
            assert Told(tmp_path, sink).code == 0
            assert "as one-doctor (" in broker.log
            assert "Client one already connected" not in broker.log
            assert broker.log.count("as one (") == 1
        finally:
            daemon.terminate()


def test_kafka(tmp_path: Path) -> None:
    cluster = Cluster()
    told = Told(tmp_path, backend(f"kafka://{cluster.place}"))
    assert (told.code, told.sink()["state"]) == (0, "good")
    assert "1 brokers; the topic fox.sample is there" in told.sink()["found"]
    told = Told(tmp_path, backend(f"kafka://127.0.0.1:{free_port()}"))
    assert told.code == 1
    assert "refused" in told.sink()["found"]


def test_who_accepts_and_says_nothing_takes_its_time_limit(tmp_path: Path) -> None:
    pretender = Pretender(lambda self, connected: self.hang())
    try:
        sinks = "".join(
            f'[sinks.{scheme}]\nurl = "{scheme}://127.0.0.1:{pretender.port}"\ntime-limit = "1s"\n'
            for scheme in ("http", "nats", "mqtt")
        )
        told = Told(tmp_path, sinks)
    finally:
        pretender.stop()
    assert told.code == 1
    assert told.seconds < 60
    for name in ("http", "nats", "mqtt"):
        assert "no answer" in told.sink(name)["found"]
        assert "firewalls" in told.sink(name)["fix"]


def test_a_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    told = Told(tmp_path, backend(f"dir:{tmp_path}/file"))
    assert told.code == 1
    assert told.sink()["found"] == f"{tmp_path}/file: Not a directory"


def test_on_demand_a_message_is_delivered(server: Server, tmp_path: Path) -> None:
    told = Told(tmp_path, backend(f"http://{server.place}/in"), "--deliver")
    assert (told.code, len(server.requests)) == (0, 1)
    assert told.sink()["found"] == f"http://{server.place}/in: took a message; 204 No Content"
