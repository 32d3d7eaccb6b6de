"""What strangers send, and machines that fail at the worst moment."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from ccagent.controls import local_socket
from ccagent.controls.client import Client, CommandLine, ask_locally
from ccagent.controls.journal import AUDIT_FILE, JOURNAL_FILE, Audit, Entry, Journal, read_audit
from ccagent.controls.local_socket import BoundedCalls, LocalSocket
from ccagent.controls.policy import RequestSender
from ccagent.log import read_choice
from ccagent.net.nats_session import log_loop_error
from ccagent.records.line_protocol import Line
from tests.support.control_machines import MachineNode, Site, add_os, allow, intel

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SWAP = "proc/sys/vm/swappiness"
LEASED: dict[str, object] = {"min": 0, "max": 200, "lease": "2h"}
KEY = f"U{'A' * 55}"


@pytest.fixture
def node(tmp_path: Path) -> MachineNode:
    found = MachineNode(tmp_path)
    add_os(found)
    return found


@pytest.fixture
def site(node: MachineNode) -> Site:
    return Site(node, allow(os__swappiness=LEASED))


def test_a_restore_that_fails_at_the_end_of_a_lease_lets_the_service_sleep(
    node: MachineNode, site: Site
) -> None:
    site.ask("os.swappiness", "10")
    (node.path / SWAP).unlink()
    node.still.sleep(7200)
    site.restore_due()
    assert site.changes.next_due() == 5.0


def test_a_value_that_is_set_again_after_a_failed_restore_keeps_its_new_lease(
    node: MachineNode, site: Site
) -> None:
    site.ask("os.swappiness", "10")
    (node.path / SWAP).unlink()
    assert site.ask("restore", "")[0] == "ERROR"
    node.put(SWAP, 60)
    assert site.ask("os.swappiness", "20")[0] == "INFO"
    node.still.sleep(60)
    site.restore_due()
    assert node.text(SWAP) == "20"


def test_a_disk_that_is_full_after_the_write_is_no_failure_of_the_request(
    node: MachineNode, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = node.write_file

    def write_and_fill(path: str, content: bytes, offset: int | None = None) -> None:
        real(path, content, offset)

        def full(_: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fdatasync", full)

    monkeypatch.setattr(node, "write_file", write_and_fill)
    level, text = site.ask("os.swappiness", "10")
    assert (level, node.text(SWAP)) == ("INFO", "10"), text
    assert [entry.action for entry in site.entries] == ["set"]
    monkeypatch.undo()
    node.still.sleep(7200)
    site.restore_due()
    assert node.text(SWAP) == "60"


def test_a_failure_that_nobody_foresaw_puts_the_value_back_and_is_answered(
    node: MachineNode, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = node.write_file

    def write(path: str, content: bytes, offset: int | None = None) -> None:
        real(path, content, offset)
        monkeypatch.undo()
        raise ValueError("unforeseen")

    monkeypatch.setattr(node, "write_file", write)
    assert site.ask("os.swappiness", "10") == ("ERROR", "it failed: ValueError; see the log")
    assert (node.text(SWAP), site.changes.all()) == ("60", [])


def test_an_unforeseen_failure_of_a_restore_is_tried_again(
    node: MachineNode, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.ask("os.swappiness", "10")

    def refuse(*_: object) -> None:
        raise ValueError("unforeseen")

    monkeypatch.setattr(node, "write_file", refuse)
    assert not site.changes.restore(site.changes.all()[0], "test")
    monkeypatch.undo()
    node.still.sleep(5)
    site.restore_due()
    assert node.text(SWAP) == "60"


def test_nothing_is_set_any_more_while_the_service_stops(node: MachineNode, site: Site) -> None:
    site.changes.close()
    assert site.ask("os.swappiness", "10")[0] == "ERROR"
    assert node.text(SWAP) == "60"


@pytest.mark.parametrize("job", ["²", "٣", "9" * 5000, "-1"])
def test_a_job_that_is_no_number_is_an_error(site: Site, job: str) -> None:
    level, text = site.ask("restore", "", job=job)
    assert (level, "is not a number" in text) == ("ERROR", True)


def test_a_request_within_the_rounding_of_the_hardware_is_written(tmp_path: Path) -> None:
    node = intel(tmp_path)
    site = Site(node, allow(rapl__pkg_limit_1={"min": 80, "max": 350}))
    now = float(site.ask("rapl.pkg_limit_1", kind="socket")[1])
    level, text = site.ask("rapl.pkg_limit_1", str(int(now) - 1), kind="socket")
    assert level == "INFO", text
    assert float(site.ask("rapl.pkg_limit_1", kind="socket")[1]) == int(now) - 1
    site.ask("restore", "")
    assert float(site.ask("rapl.pkg_limit_1", kind="socket")[1]) == now


def test_who_may_not_set_a_control_may_not_put_it_back(node: MachineNode) -> None:
    site = Site(node, allow(os__swappiness={**LEASED, "from": [f"key:{KEY}"]}))
    owner = RequestSender("owner", frozenset({f"key:{KEY}"}))
    assert site.ask("os.swappiness", "10", sender=owner)[0] == "INFO"
    assert site.ask("restore", "")[0] == "ERROR"
    assert node.text(SWAP) == "10"
    assert site.ask("restore", "", sender=owner)[0] == "INFO"


def test_names_of_strangers_do_not_fill_the_audit(site: Site) -> None:
    long = "x" * 100_000
    site.ask(long, "1", number=long)
    assert os.path.getsize(site.state / AUDIT_FILE) < 4096


def test_an_entry_after_a_line_that_a_full_disk_cut_is_read(tmp_path: Path) -> None:
    audit = Audit(str(tmp_path), lambda: 0.0, lambda _: None)
    audit.add(Entry(action="set", control="a.b", by="x"))
    with (tmp_path / AUDIT_FILE).open("ab") as file:
        file.write(b'{"time":"2026')
    audit.add(Entry(action="set", control="c.d", by="x"))
    assert [entry.control for entry in read_audit(str(tmp_path), 0)] == ["a.b", "c.d"]


class HostileClient(Client):
    """Nodes that answer whatever they like."""

    def __init__(self, text: str, hostname: str = "n1") -> None:
        self.nodes: Sequence[str] = []
        self._text = text
        self._hostname = hostname

    def ask(self, lines: Sequence[Line]) -> list[Line]:
        tags = {"hostname": self._hostname, "level": "INFO"}
        return [Line(line.measurement, tags, "log", self._text, 1) for line in lines]


LISTED = (
    '{"controls":[{"category":"a","name":"b","device_type":"hwthread",'
    '"description":"\\u001b[2J\\n# n2","methods":"ALL"}]}'
)


def shown(client: Client, name: str = "") -> str:
    lines: list[str] = []

    def add(line: str) -> Any:
        lines.append(line)

    command = CommandLine(client, as_json=False, print_line=add)
    if name:
        command.get([name])
    else:
        command.show_list()
    assert all(line.isprintable() for line in lines)
    return "\n".join(lines)


def test_a_listing_of_a_hostile_node_controls_no_terminal() -> None:
    assert "\\x1b" in shown(HostileClient(LISTED))


@pytest.mark.parametrize("text", ['{"hwthreads":[{}]}', '{"hwthreads":7}', "[" * 5000, "7"])
def test_a_topology_that_is_none_is_no_crash(text: str) -> None:
    assert "n1" in shown(HostileClient(text), "a.b")


def test_names_of_nodes_with_other_digits_are_sorted() -> None:
    assert "²" in shown(HostileClient("x", "1²1"), "a.b")


def test_a_log_level_that_is_a_list_is_no_crash() -> None:
    assert read_choice({"log-level": [], "log-format": {}}) == ("warning", "auto")


def test_a_damaged_journal_is_kept_for_people(tmp_path: Path) -> None:
    path = tmp_path / JOURNAL_FILE
    path.write_bytes(b"00000000 {}\n")
    Journal(str(tmp_path))
    assert (tmp_path / f"{JOURNAL_FILE}.damaged").read_bytes() == b"00000000 {}\n"


def test_the_local_socket_goes_on_after_too_many_open_files(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = str(tmp_path / "run" / "s")
    monkeypatch.setattr("asyncio.constants.ACCEPT_RETRY_DELAY", 0)
    real = socket.socket.accept
    failures = [OSError(24, "Too many open files")]

    def accept(listening: socket.socket) -> tuple[socket.socket, Any]:
        if failures:
            raise failures.pop()
        return real(listening)

    monkeypatch.setattr(socket.socket, "accept", accept)
    request = b'os.swappiness,method=GET,type=node control="" 1795329333248607217\n'

    async def ask() -> bytes:
        asyncio.get_running_loop().set_exception_handler(log_loop_error)
        listening = LocalSocket(path, site.responder, BoundedCalls())
        await listening.start()
        try:
            return await asyncio.to_thread(ask_locally, path, request, 30.0)
        finally:
            listening.close()

    assert b'log="60"' in asyncio.run(ask())
    assert not failures


def test_requests_that_hang_are_abandoned_until_they_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends: list[str] = []
    monkeypatch.setattr(local_socket, "end_process", ends.append)
    released = threading.Event()

    async def hang() -> None:
        calls = BoundedCalls()
        for _ in range(17):
            assert not ends
            with pytest.raises(TimeoutError):
                await calls.call(released.wait, 0.0)
        assert ends == ["17 requests hang"]
        released.set()
        assert await calls.call(lambda: 7, None) == 7

    asyncio.run(hang())
