"""Requests of the reference's client, over a real server, to services of composed machines."""

from __future__ import annotations

import json
import signal
import socket
import time
from typing import TYPE_CHECKING

import pytest

from ccagent.net.signatures import sign
from tests.integration.controls.conftest import ControlClient
from tests.support.control_machines import CPU, RAPL, MachineNode, add_os, amd, intel
from tests.support.nats_server import NatsServer, new_seed, public_key

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ccagent.records.line_protocol import Line
    from tests.integration.controls.conftest import RunningService

SWAP = "proc/sys/vm/swappiness"


def table(url: str, hostname: str = "n1.fox", more: str = "") -> str:
    """A configuration; the service's own directories are added behind [controls]."""
    return (
        f'hostname = "{hostname}"\ncluster = "fox"\n'
        '[controls.allow."cpu_freq.governor"]\nvalues = ["performance", "powersave"]\n'
        '[controls.allow."rapl.pkg_limit_1"]\nmin = 80\nmax = 350\nlease = "2h"\n'
        '[controls.allow."os.swappiness"]\nmin = 0\nmax = 100\n'
        f'[controls]\nurl = "{url}"\n'
        f'subjects = ["cc-control", "fox.control.get", "fox.control.put"]\n{more}\n'
    )


def request(name: str, method: str = "GET", value: str = "", kind: str = "node",
            number: str = "0", host: str = "n1") -> str:  # fmt: skip
    return (
        f"{name},hostname={host},method={method},type={kind},type-id={number} "
        f'control="{value}" {time.time_ns()}'
    )


def text(answers: list[Line]) -> str:
    (answer,) = answers
    return f"{answer.tags['level']} {answer.value}"


def test_every_demand_of_the_references_client_holds(
    server: NatsServer, client: ControlClient, tmp_path: Path,
    start: Callable[..., RunningService],
) -> None:  # fmt: skip
    node = intel(tmp_path / "machine")
    service = start(node.path, table(server.url))
    recorded = [
        request("topology"),
        request("controls"),
        request("cpu_freq.governor", kind="hwthread"),
        request("cpu_freq.governor", "PUT", "performance", "hwthread"),
        request("cpu_freq.nothing", kind="hwthread"),
        request("os.swappiness"),
    ]
    for body in recorded:
        (answer,) = client.ask(body)
        assert answer.measurement == body.split(",")[0]
        assert answer.tags["hostname"] == "n1"
        assert answer.tags["level"] in {"INFO", "ERROR"}
        assert answer.field == "log"
        assert isinstance(answer.value, str)
    assert text(client.ask(recorded[2])) == "INFO performance"
    topology = json.loads(text(client.ask(recorded[0])).removeprefix("INFO "))
    assert topology["cpu_info"]["num_sockets"] == 2
    listed = json.loads(text(client.ask(recorded[1])).removeprefix("INFO "))["controls"]
    assert {"category", "name", "device_type", "description", "methods"} == set(listed[0])
    assert service.stop() == 0
    assert node.text(f"{CPU}/cpu0/cpufreq/scaling_governor") == "powersave"


def test_two_nodes_answer_each_for_itself_and_an_unknown_host_is_silence(
    server: NatsServer, client: ControlClient, tmp_path: Path,
    start: Callable[..., RunningService],
) -> None:  # fmt: skip
    start(intel(tmp_path / "one").path, table(server.url))
    start(amd(tmp_path / "two").path, table(server.url, "n2.fox", 'spread = "100ms"'))
    assert text(client.ask(request("scaling_driver", kind="hwthread"))) == "INFO intel_pstate"
    two = request("scaling_driver", kind="hwthread", host="n2")
    assert text(client.ask(two)) == "INFO amd-pstate-epp"
    assert client.ask(request("os.swappiness", host="n3"), answers=1, seconds=0.5) == []
    everybody = request("os.swappiness").replace(",hostname=n1", "")
    found = client.ask(everybody, answers=2)
    assert sorted(answer.tags["hostname"] for answer in found) == ["n1", "n2"]
    both = f"{request('os.swappiness')}\n{two}\n{request('os.nothing')}"
    answers = client.ask(both, answers=3)
    assert sorted(answer.tags["level"] for answer in answers) == ["ERROR", "INFO", "INFO"]


def test_the_tree_of_the_specification_separates_get_and_put(
    server: NatsServer, client: ControlClient, tmp_path: Path,
    start: Callable[..., RunningService],
) -> None:  # fmt: skip
    node = intel(tmp_path / "machine")
    start(node.path, table(server.url))
    limit = f"{RAPL}/intel-rapl:0/constraint_0_power_limit_uw"
    get = request("rapl", value="pkg_limit_1", kind="socket")
    put = request("rapl", "PUT", "pkg_limit_1=100", "socket")
    assert text(client.ask(get, "fox.control.get")) == "INFO 270.000000"
    assert text(client.ask(put, "fox.control.get")).startswith("ERROR this subject is for GET")
    assert node.text(limit) == "270000000"
    assert text(client.ask(put, "fox.control.put")).endswith("SUCCESS!")
    assert node.text(limit) == "100000000"


def test_a_read_that_hangs_is_answered_and_not_repeated(
    server: NatsServer, client: ControlClient, tmp_path: Path,
    start: Callable[..., RunningService],
) -> None:  # fmt: skip
    """A reload tries it again."""
    node = intel(tmp_path / "machine")
    hanging = f"{CPU}/cpu1/cpufreq/scaling_governor"
    service = start(node.path, table(server.url, more='time-limit = "2s"'), hanging)
    other = request("cpu_freq.governor", kind="hwthread", number="0")
    stuck = request("cpu_freq.governor", kind="hwthread", number="1")
    assert text(client.ask(stuck)) == "ERROR no answer of the machine within 2 s"
    assert text(client.ask(other)) == "INFO powersave"
    assert "its read has hung" in text(client.ask(stuck))
    service.signal(signal.SIGHUP)
    service.wait_for(lambda: "configuration read again" in service.log)
    assert text(client.ask(stuck)) == "ERROR no answer of the machine within 2 s"
    assert service.stop() == 0


def test_a_write_that_hangs_holds_up_nobody(
    server: NatsServer, client: ControlClient, tmp_path: Path,
    start: Callable[..., RunningService],
) -> None:  # fmt: skip
    node = intel(tmp_path / "machine")
    hanging = f"{CPU}/cpu1/cpufreq/scaling_governor"
    start(node.path, table(server.url, more='time-limit = "2s"'), hanging)
    other = request("cpu_freq.governor", kind="hwthread", number="0")
    body = f"{request('cpu_freq.governor', 'PUT', 'performance', 'hwthread', '1')}\n{other}"
    answers = client.ask(body, answers=2)
    assert [answer.tags["level"] for answer in answers] == ["ERROR", "INFO"]
    assert "no answer of the machine within 2 s" in str(answers[0].value)


def test_the_service_comes_back_after_the_server(
    server: NatsServer, tmp_path: Path, start: Callable[..., RunningService]
) -> None:
    start_node = MachineNode(tmp_path / "machine")
    add_os(start_node)
    service = start(start_node.path, table(server.url))
    server.kill()
    service.wait_for(lambda: "retrying" in service.log)
    server.start()
    service.wait_for(lambda: service.log.count("connected to") == 2)
    client = ControlClient(server.url)
    assert text(client.ask(request("os.swappiness"))) == "INFO 60"
    client.close()


def test_a_kill_keeps_the_lease_and_a_stop_puts_back(
    server: NatsServer, client: ControlClient, tmp_path: Path,
    start: Callable[..., RunningService],
) -> None:  # fmt: skip
    node = MachineNode(tmp_path / "machine")
    add_os(node)
    service = start(node.path, table(server.url))
    assert text(client.ask(request("os.swappiness", "PUT", "10"))).endswith("SUCCESS!")
    service.kill()
    assert node.text(SWAP) == "10"
    service.start()
    service.wait_for(lambda: "kept: os.swappiness@0 60 -> 10" in service.log)
    assert node.text(SWAP) == "10"
    assert service.stop() == 0
    assert node.text(SWAP) == "60"


def test_a_short_lease_ends_while_the_service_sleeps(
    server: NatsServer, client: ControlClient, tmp_path: Path,
    start: Callable[..., RunningService],
) -> None:  # fmt: skip
    """Without a change the service looks once a minute."""
    node = MachineNode(tmp_path / "machine")
    add_os(node)
    service = start(node.path, table(server.url))
    put = request("os.swappiness", "PUT", "10").replace(" control", ",lease=1s control")
    assert text(client.ask(put)).endswith("SUCCESS!")
    service.wait_for(lambda: "restored: os.swappiness@0 10 -> 60, by end of lease" in service.log)
    assert node.text(SWAP) == "60"


def test_a_reload_takes_over_a_policy_and_keeps_the_old_one_if_it_is_wrong(
    server: NatsServer, client: ControlClient, tmp_path: Path,
    start: Callable[..., RunningService],
) -> None:  # fmt: skip
    node = MachineNode(tmp_path / "machine")
    add_os(node)
    service = start(node.path, table(server.url))
    client.ask(request("os.swappiness", "PUT", "10"))
    good = service.config.read_text()
    service.config.write_text(good.replace("max = 100", "max = true"))
    service.signal(signal.SIGHUP)
    service.wait_for(lambda: "the old one stays" in service.log)
    assert text(client.ask(request("os.swappiness", "PUT", "11"))).endswith("SUCCESS!")
    service.config.write_text(good.replace("os.swappiness", "os.numa_balancing"))
    service.signal(signal.SIGHUP)
    service.wait_for(lambda: "read again" in service.log)
    service.wait_for(lambda: node.text(SWAP) == "60")
    assert text(client.ask(request("os.swappiness", "PUT", "12"))).startswith("ERROR")


def test_changes_are_event_messages_where_that_is_asked_for(
    server: NatsServer, client: ControlClient, tmp_path: Path,
    start: Callable[..., RunningService],
) -> None:  # fmt: skip
    node = MachineNode(tmp_path / "machine")
    add_os(node)
    start(node.path, table(server.url, more='audit-subject = "fox.events.control"'))
    watcher = ControlClient(server.url)
    watcher.listen("fox.events.control")
    client.ask(request("os.swappiness", "PUT", "10"))
    message = watcher.link.receive(30)
    watcher.close()
    assert message is not None
    assert message.data.startswith(b"control,cluster=fox,function=set,hostname=n1,type=node")
    assert b'\\"before\\":\\"60\\"' in message.data


@pytest.mark.parametrize(
    "damaged",
    [
        b"PUB cc-control \xff 2\r\nab\r\n",
        b"HPUB cc-control 4 6\r\n\r\n\r\nab\r\n",
        b"PUB cc-control _INBOX.x 5\r\n\xff\x00,,=\r\n",
        b"PUB cc-control 2000000\r\n" + bytes(2_000_000) + b"\r\n",
    ],
    ids=["reply", "headers", "body", "large"],
)
def test_a_damaged_message_stops_no_request(
    tmp_path: Path, start: Callable[..., RunningService], damaged: bytes
) -> None:
    node = MachineNode(tmp_path / "machine")
    add_os(node)
    server = NatsServer(tmp_path / "nats", "max_payload: 8MB", with_jetstream=False)
    try:
        service = start(node.path, table(server.url))
        with socket.create_connection(("127.0.0.1", server.port)) as sender:
            sender.sendall(b'CONNECT {"headers":true,"verbose":false}\r\n')
            sender.sendall(damaged + b"PING\r\n")
            answers = b""
            while b"PONG" not in answers:
                received = sender.recv(4096)
                assert received, answers
                answers += received
        client = ControlClient(server.url)
        assert text(client.ask(request("os.swappiness"))) == "INFO 60"
        client.close()
        assert service.log.count("connected to") == 1
    finally:
        server.kill()


ACCOUNTS = """
accounts {
  NODES { users = [{user: node, password: node}]
          exports = [{service: "cc-control", accounts: [OPS, LAB]}] }
  OPS { users = [{user: ada, password: ada}]
        imports = [{service: {account: NODES, subject: "cc-control"}, share: true}] }
  LAB { users = [{user: eve, password: eve}]
        imports = [{service: {account: NODES, subject: "cc-control"}, share: true}] }
}
"""


@pytest.fixture
def with_accounts(tmp_path: Path) -> NatsServer:
    return NatsServer(tmp_path / "accounts", ACCOUNTS, with_jetstream=False)


def test_accounts_are_as_the_server_tells_them(
    with_accounts: NatsServer, tmp_path: Path, start: Callable[..., RunningService]
) -> None:
    """A header that a client makes up itself is replaced by the server's."""
    node = MachineNode(tmp_path / "machine")
    add_os(node)
    for name in ("node", "ada", "eve"):
        (tmp_path / name).write_text(name)
        (tmp_path / name).chmod(0o600)
    more = (
        f'user = "node"\npassword-file = "{tmp_path}/node"\n'
        'trust-request-info = true\nfrom = ["account:OPS"]'
    )
    try:
        start(node.path, table(with_accounts.url, more=more))
        ada, eve = (
            ControlClient(with_accounts.url, user=name, password_file=str(tmp_path / name))
            for name in ("ada", "eve")
        )
        put = request("os.swappiness", "PUT", "10")
        for header in ("Nats-Request-Info", "nats-request-info", "NATS-REQUEST-INFO"):
            forged = {header: '{"acc":"OPS","user":"ada"}'}
            assert "refuses this sender" in text(eve.ask(put, headers=forged))
        assert text(eve.ask(request("os.swappiness"))) == "INFO 60"
        assert text(ada.ask(put)).endswith("SUCCESS!")
        audit = text(ada.ask(request("audit")))
        assert "account OPS" in audit
        ada.close()
        eve.close()
    finally:
        with_accounts.kill()


def test_signed_requests_need_no_account_of_their_own(
    server: NatsServer, client: ControlClient, tmp_path: Path,
    start: Callable[..., RunningService],
) -> None:  # fmt: skip
    node = MachineNode(tmp_path / "machine")
    add_os(node)
    seed = new_seed()
    start(node.path, table(server.url, more=f'from = ["key:{public_key(seed)}"]'))
    put = request("os.swappiness", "PUT", "10")
    assert "refuses this sender" in text(client.ask(put))
    signed = sign(seed, "cc-control", put.encode(), time.time())
    assert text(client.ask(put, headers=signed)).endswith("SUCCESS!")
    assert "used before" in text(client.ask(put, headers=signed))
    other = sign(new_seed(), "cc-control", put.encode(), time.time())
    assert "refuses this sender" in text(client.ask(put, headers=other))
    assert text(client.ask(request("os.swappiness"))) == "INFO 10"
