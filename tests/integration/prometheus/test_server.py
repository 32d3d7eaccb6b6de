"""The server with clients that are slow, many, rude, or that nobody invited."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.parse
from pathlib import Path

import pytest

from tests.integration.prometheus.conftest import Exporter, get, is_open
from tests.support.certificates import Authority
from tests.support.exposition import parse
from tests.support.ports import free_port
from tests.support.running import CCAGENT, until
from tests.support.upgrades import PREFACE, ask_for_upgrades, ask_with_curl, statuses

OPENMETRICS = "application/openmetrics-text;version=1.0.0"


def curl(*arguments: str) -> tuple[str, str]:
    """Return status and body of an answer, as curl has them."""
    done = subprocess.run(
        ["curl", "-s", "-g", "--max-time", "60", "-w", "\n%{http_code}", *arguments],
        capture_output=True, check=False,
    )  # fmt: skip
    body, _, status = done.stdout.decode().rpartition("\n")
    return status, body


def tls(authority: Authority, users: Path) -> str:
    certificate, key = authority.certify("exporter")
    return (
        f'names = ["node_exporter"]\ncertificate-file = "{certificate}"\nkey-file = "{key}"\n'
        f'users-file = "{users}"\n'
    )


def test_an_upgrade_is_ignored(exporter: Exporter) -> None:
    exporter.serve('names = ["ccagent"]')
    port = urllib.parse.urlsplit(exporter.url).port or 0
    assert ask_with_curl(exporter.url) == 200
    assert ask_for_upgrades(port, b"GET /metrics HTTP/1.1") == [[200, 404]] * 4
    # A body is refused, and ends the connection: it is not taken for a request.
    hidden = b"GET /metrics HTTP/1.1\r\n\r\n"
    assert ask_for_upgrades(port, b"POST /metrics HTTP/1.1", hidden) == [[413]] * 8
    assert statuses(port, PREFACE) == [400]


_HEADS: list[tuple[bytes, list[int]]] = [
    (b"GET  / HTTP/1.1\r\n\r\n", [400]),
    (b"GET /\r\n\r\n", [400]),
    (b"GET / HTTP/2.0\r\n\r\n", [400]),
    (b"GET / HTTP/x\r\n\r\n", [400]),
    (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", [400]),
    (b"get / HTTP/1.1\r\nConnection: close\r\n\r\n", [405]),
    (b"GET / HTTP/1.1\r\nno colon\r\nContent-Length: 5\r\n\r\n", [400]),
    (b"GET / HTTP/1.1\r\n: x\r\n\r\n", [400]),
    (b"GET / HTTP/1.1\r\n a: x\r\n\r\n", [400]),
    (b"GET / HTTP/1.1\r\nA: b\r\n c: d\r\n\r\n", [400]),
    (b"GET / HTTP/1.1\r\nContent-Length : 5\r\n\r\n", [400]),
    (b"GET / HTTP/1.1\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\nGET /", [413]),
    (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", [413]),
    (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 101 + b"\r\n", [431]),
    (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n", [431]),
    (b"GET http://node:9500/x HTTP/1.1\r\nConnection: TE, close\r\n\r\n", [404]),
    (b"GET http://node:9500 HTTP/1.0\r\n\r\n", [200]),
    (b"GET / HTTP/1.1\r\nA: b", []),
    (b"GET / HTTP/1.1\r\nA: b\n\nTransfer-Encoding: chunked\r\n\r\n", [400]),
    (b"GET / HTTP/1.1\r\nFrom x\r\n\r\n", [400]),
    (b"GET / HTTP/1.1\r\nA: b\rC: d\r\n\r\n", [400]),
    (b"GET /\x0b HTTP/1.1\r\n\r\n", [400]),
    (b"GET / HTTP/1.10\r\n\r\n", [400]),
    (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", [400]),
    (b"GET / HTTP/1.1\r\nConnection: TE, close\r\n\r\nGET / HTTP/1.1\r\n\r\n", [200]),
]


def test_heads_of_any_kind(exporter: Exporter) -> None:
    exporter.serve('names = ["ccagent"]')
    for head, expected in _HEADS:
        assert statuses(exporter.port, head, ends=True) == expected, head


def test_formats_and_pages(exporter: Exporter) -> None:
    exporter.serve('names = ["ccagent", "node_exporter"]')
    assert parse(get(exporter.url))
    assert parse(get(exporter.url, Accept=OPENMETRICS), "openmetrics")
    status, body = curl("--compressed", "-H", f"Accept: {OPENMETRICS}", exporter.url)
    assert status == "200"
    assert parse(body, "openmetrics")
    base = exporter.url.removesuffix("/metrics")
    assert 'href="/metrics"' in curl(base + "/")[1]
    for arguments, expected in (
        ((base + "/x",), "404"),
        (("-X", "POST", exporter.url), "405"),
        (("-d", "body", exporter.url), "413"),
        ((exporter.url + "?collect[]=cpu&exclude[]=time",), "400"),
        ((exporter.url + "?collect[]=nonsense",), "400"),
        (("-H", "X: " + "x" * 20_000, exporter.url), "431"),
        (("-I", exporter.url), "200"),
    ):
        assert curl(*arguments)[0] == expected, arguments
    _, one = curl(exporter.url + "?collect[]=loadavg&collect[]=time")
    names = {name for name, _ in parse(one)}
    assert "node_load1" in names
    assert "node_time_seconds" in names
    assert "node_cpu_seconds_total" not in names


def test_slow_and_many_clients_hold_nobody_up(exporter: Exporter) -> None:
    exporter.serve('names = ["node_exporter"]\nclients = 20\nclient-timeout = "1s"')
    address = ("127.0.0.1", exporter.port)
    slow = [socket.create_connection(address) for _ in range(60)]
    for number, each in enumerate(slow):
        with_part = [b"", b"GET /metrics HTTP/1.1\r\nA", b"G"][number % 3]
        try:
            each.sendall(with_part)
        except OSError:
            continue
    for _ in range(5):
        assert parse(get(exporter.url))
    begin = time.monotonic()
    for each in slow:
        each.settimeout(60)
        with contextlib.suppress(ConnectionResetError):
            assert each.recv(1) == b""
        each.close()
    assert time.monotonic() - begin < 60


def test_more_clients_at_once_than_permitted_wait_for_their_turn(exporter: Exporter) -> None:
    exporter.serve('names = ["node_exporter"]\nclients = 5')
    answers: list[str] = []
    clients = [
        threading.Thread(target=lambda: answers.append(get(exporter.url))) for _ in range(60)
    ]
    for each in clients:
        each.start()
    for each in clients:
        each.join(30)
    assert len(answers) == 60
    assert all("node_load1 " in each for each in answers)


def test_an_address_with_all_connections_makes_room_for_others(exporter: Exporter) -> None:
    exporter.serve('clients = 5\nclient-timeout = "1s"')
    address = ("127.0.0.1", exporter.port)
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            for _ in range(5):
                hostile = socket.create_connection(address, 60, ("127.0.0.2", 0))
                stack.enter_context(hostile).sendall(b"GET /m")
            assert "ccagent_build_info" in get(exporter.url)
        with stack.enter_context(socket.create_connection(address, 60)) as malformed:
            malformed.sendall(b"nonsense\r\n\r\n")
            assert malformed.recv(100).startswith(b"HTTP/1.1 400")
        until(lambda: re.search(r'reason="slow"} [1-9]', get(exporter.url)))
    found = dict(re.findall(r'stopped_clients_total\{reason="(\w+)"\} (\d+)', get(exporter.url)))
    assert found["malformed"] == "1"
    assert int(found["evicted"]) >= 10
    assert exporter.said().count("127.0.0.2: connection closed for a client of another") == 1


def test_a_client_that_reads_nothing_is_given_up(exporter: Exporter) -> None:
    exporter.serve('names = ["node_exporter"]\nclient-timeout = "1s"')
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        reader.connect(("127.0.0.1", exporter.port))
        for _ in range(200):
            try:
                reader.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            except OSError:
                break
        assert parse(get(exporter.url))


def test_a_connection_is_kept_and_requests_may_follow_at_once(exporter: Exporter) -> None:
    exporter.serve('names = ["node_exporter"]')
    connection = http.client.HTTPConnection("127.0.0.1", exporter.port, timeout=60)
    for _ in range(3):
        connection.request("GET", "/metrics?collect[]=loadavg")
        answer = connection.getresponse()
        assert (answer.status, bool(parse(answer.read().decode()))) == (200, True)
    connection.close()
    with socket.create_connection(("127.0.0.1", exporter.port)) as both:
        both.sendall(b"GET / HTTP/1.1\r\n\r\nGET /x HTTP/1.1\r\nConnection: close\r\n\r\n")
        both.settimeout(60)
        received = b""
        while part := both.recv(65536):
            received += part
    assert received.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 404" in received


def test_tls_and_a_password(exporter: Exporter, authority: Authority, users: Path) -> None:
    exporter.serve(tls(authority, users))
    url = f"https://127.0.0.1:{exporter.port}/metrics"
    ca = ("--cacert", authority.certificate)
    assert curl(*ca, "-u", "ada:right", url)[0] == "200"
    assert curl(*ca, url)[0] == "401"
    assert curl(*ca, "-u", "ada:wrong", url)[0] == "401"
    assert curl(*ca, "-u", "eve:right", url)[0] == "401"
    assert curl(*ca, "-u", "ada:right", url.replace("metrics", ""))[0] == "200"
    assert curl("-u", "ada:right", url)[0] == "000"
    assert curl("--tls-max", "1.1", *ca, "-u", "ada:right", url)[0] == "000"
    assert "right" not in exporter.said().replace("a wrong user", "")


def test_stalled_handshakes_hold_nobody_up(
    exporter: Exporter, authority: Authority, users: Path
) -> None:
    exporter.serve(tls(authority, users) + "clients = 20\n")
    stalled = [socket.create_connection(("127.0.0.1", exporter.port)) for _ in range(15)]
    for each in stalled[::2]:
        each.sendall(b"\x16\x03\x01\x02\x00\x01")  # half of a ClientHello
    url = f"https://127.0.0.1:{exporter.port}/metrics"
    begin = time.monotonic()
    assert curl("--cacert", authority.certificate, "-u", "ada:right", url)[0] == "200"
    assert time.monotonic() - begin < 8  # less than a stalled one is given
    for each in stalled:
        each.close()


def test_client_certificates(exporter: Exporter, authority: Authority) -> None:
    certificate, key = authority.certify("server2")
    mine, my_key = authority.certify("client")
    keys = (
        f'names = ["node_exporter"]\ncertificate-file = "{certificate}"\nkey-file = "{key}"\n'
        f'client-ca-file = "{authority.certificate}"\n'
    )
    exporter.serve(keys + 'client-names = ["127.0.0.1"]\n')
    url = f"https://127.0.0.1:{exporter.port}/metrics"
    ca = ("--cacert", authority.certificate)
    own = ("--cert", mine, "--key", my_key)
    assert curl(*ca, *own, url)[0] == "200"
    assert curl(*ca, url)[0] == "000"
    exporter.reload(exporter.configured(keys + 'client-names = ["other.example.org"]\n'))
    until(lambda: curl(*ca, *own, url)[0] == "000")


def test_a_renewed_certificate_counts_without_a_restart(
    exporter: Exporter, authority: Authority, users: Path
) -> None:
    exporter.serve(tls(authority, users))

    def serial() -> str:
        context = ssl.create_default_context(cafile=authority.certificate)
        with (
            socket.create_connection(("127.0.0.1", exporter.port)) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped,
        ):
            return str((wrapped.getpeercert() or {})["serialNumber"])

    before = serial()
    authority.certify("exporter")
    until(lambda: serial() != before)


def test_the_network_is_refused_without_tls_and_a_password(tmp_path: Path) -> None:
    file = tmp_path / "ccagent.toml"
    file.write_text('[exporter]\nlisten = ["0.0.0.0:9500"]\n')
    done = subprocess.run(
        [*CCAGENT, "run", "--config", str(file)], capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert b"is open to the network" in done.stderr


def test_missing_files_end_the_start_with_a_sentence(exporter: Exporter, tmp_path: Path) -> None:
    keys = f'certificate-file = "{tmp_path}/none.pem"\nkey-file = "{tmp_path}/none.key"'
    exporter.start(exporter.configured(keys))
    assert exporter.process is not None
    assert exporter.process.wait(60) == 2
    assert "exporter.certificate-file" in exporter.said()
    assert "Traceback" not in exporter.said()


def test_an_address_that_is_taken_is_tried_again(exporter: Exporter) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", exporter.port))
        taken.listen()
        exporter.start(exporter.configured('names = ["node_exporter"]'))
        until(lambda: "Address already in use; retrying" in exporter.said())

    def is_served() -> bool:
        try:
            return "node_load1" in get(exporter.url)
        except (OSError, urllib.error.URLError):
            return False

    until(is_served)


def test_a_reload_changes_names_and_removes_the_port(exporter: Exporter) -> None:
    exporter.serve('names = ["node_exporter"]')
    assert "ccagent_build_info" not in get(exporter.url)
    exporter.reload(exporter.configured('names = ["ccagent"]'))
    until(lambda: "configuration read again" in exporter.said())
    assert "ccagent_build_info" in get(exporter.url)
    exporter.reload(
        'status-socket = ""\n[agents.sysinfo]\nevery = "1h"\n[sinks.a]\nurl = "stdout:"\n'
    )
    until(lambda: not is_open(exporter.port))


def test_reloads_refuse_and_cut_no_scrape(exporter: Exporter) -> None:
    """Each reload changes [exporter]; curl's library and a kept connection ask all the time."""
    exporter.serve('names = ["node_exporter"]')
    errors: list[str] = []
    counts: list[int] = []
    ended = threading.Event()

    def scrape(*, is_kept: bool) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", exporter.port, timeout=60)
        while not ended.wait(0.003):
            try:
                connection.request("GET", "/metrics")
                answer = connection.getresponse()
                if b"node_load1 " not in answer.read() or answer.status != 200:
                    errors.append(f"status {answer.status}")
                counts.append(1)
            except (OSError, http.client.HTTPException) as error:
                errors.append(repr(error))
                connection.close()
            if not is_kept:
                connection.close()
        connection.close()

    clients = [threading.Thread(target=scrape, kwargs={"is_kept": kept}) for kept in (True, False)]
    for each in clients:
        each.start()
    for number in range(1, 31):
        exporter.reload(exporter.configured(f'names = ["node_exporter"]\nclients = {30 + number}'))
        until(lambda: exporter.said().count("configuration read again") == number)  # noqa: B023
    until(lambda: len(counts) > 100)
    ended.set()
    for each in clients:
        each.join(60)
    assert errors == []


def _count_open(exporter: Exporter, path: str) -> int:
    """Return how many descriptors of the exporter refer to a file."""
    assert exporter.process is not None
    count = 0
    for each in Path(f"/proc/{exporter.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            count += str(each.readlink()) == path
    return count


def test_a_reload_closes_the_files_of_the_exporter_before(exporter: Exporter) -> None:
    exporter.serve('names = ["node_exporter"]')
    for number in range(1, 6):
        assert "node_load1 " in get(exporter.url)
        assert _count_open(exporter, "/proc/loadavg") > 0
        exporter.reload(exporter.configured(f'names = ["node_exporter"]\nclients = {30 + number}'))
        until(lambda: exporter.said().count("configuration read again") == number)  # noqa: B023
        until(lambda: not _count_open(exporter, "/proc/loadavg"))


def test_a_moved_port_answers_before_the_old_one_ends(exporter: Exporter) -> None:
    exporter.serve('names = ["node_exporter"]')
    old, new = exporter.port, free_port()
    refused = threading.Event()

    def knock() -> None:
        while is_open(old):
            time.sleep(0.001)
        if not is_open(new):
            refused.set()

    watcher = threading.Thread(target=knock)
    watcher.start()
    exporter.port = new
    exporter.reload(exporter.configured('names = ["node_exporter"]'))
    watcher.join(60)
    assert not refused.is_set()


def test_a_reload_waits_for_the_scrape_that_runs(exporter: Exporter, tmp_path: Path) -> None:
    """The scrape waits for programs of Slurm, until the reload is done."""
    slow = tmp_path / "sinfo"
    slow.write_text(
        "#!/bin/sh\ntouch begun\nwhile [ ! -e go ]; do sleep 0.05; done\n".replace(
            "begun", str(tmp_path / "begun")
        ).replace("go ]", f"{tmp_path / 'go'} ]")
    )
    slow.chmod(0o755)
    keys = f'names = ["slurm"]\nsinfo = "{slow}"\nsqueue = "{slow}"\n'
    exporter.serve(keys)
    answers: list[str] = []
    client = threading.Thread(target=lambda: answers.append(get(exporter.url)))
    client.start()
    until((tmp_path / "begun").exists)
    exporter.reload(exporter.configured('names = ["node_exporter"]'))
    until(lambda: "configuration read again" in exporter.said())
    (tmp_path / "go").touch()
    client.join(60)
    assert "collector_success" in answers[0]


def test_the_sockets_of_systemd(tmp_path: Path) -> None:
    port = free_port()
    file = tmp_path / "ccagent.toml"
    file.write_text('status-socket = ""\n[exporter]\nlisten = ["systemd"]\n')
    command = [*CCAGENT, "run", "--config", str(file)]
    process = subprocess.Popen(["systemd-socket-activate", "-l", f"127.0.0.1:{port}", *command])
    try:
        until(lambda: is_open(port))
        assert "ccagent_build_info" in get(f"http://127.0.0.1:{port}/metrics")
    finally:
        process.terminate()
        assert process.wait(60) == 0


def test_the_end_comes_at_once_while_clients_are_connected(exporter: Exporter) -> None:
    exporter.serve('names = ["node_exporter"]')
    with socket.create_connection(("127.0.0.1", exporter.port)) as idle:
        idle.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert exporter.stop() < 20
        assert "Traceback" not in exporter.said()


@pytest.mark.parametrize("names", ["ccagent", "node_exporter"])
def test_a_scrape_within_the_minimal_interval_has_the_same_values(
    exporter: Exporter, names: str
) -> None:
    exporter.serve(f'names = ["{names}"]\nmin-interval = "30s"')
    assert get(exporter.url) == get(exporter.url)
