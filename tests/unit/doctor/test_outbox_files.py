"""What the doctor finds of outboxes: damage, files that are not ours, and who may write them."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

import pytest

from ccagent.counters import SinkCounters
from ccagent.doctor.finding import Finding
from ccagent.doctor.service import (
    ServiceUser,
    assess_sinks,
    find_service_user,
    find_unwritable,
    find_values,
    list_state_directories,
    read_unit,
)
from ccagent.doctor.space import check_files, check_space, find_damage
from ccagent.machine.node import Node
from tests.support.doctor_site import found, mounted, site
from tests.support.tree import TreeNode

UNIT = "[Service]\nUser=ccagent\nStateDirectory=ccagent ccagent/outbox\n"


@pytest.fixture
def node(tmp_path: Path) -> TreeNode:
    node = TreeNode(tmp_path)
    node.write("self/mountinfo", mounted())
    return node


@pytest.fixture
def outbox(node: TreeNode) -> Path:
    directory = node.path / "var/lib/ccagent/outbox"
    directory.mkdir(parents=True)
    return directory


def database(path: Path) -> Path:
    with sqlite3.connect(path) as connection:
        connection.execute("create table messages (number integer primary key, body blob)")
        connection.executemany(
            "insert into messages (body) values (?)", [(os.urandom(2000),) for _ in range(50)]
        )
    connection.close()
    return path


def findings(node: Node) -> dict[str, Finding]:
    return {
        os.path.basename(each.subject): each
        for each in check_files(node, "/var/lib/ccagent/outbox")
    }


def test_sound_outboxes_are_not_mentioned(node: TreeNode, outbox: Path) -> None:
    database(outbox / "backend.outbox")
    (outbox / "new.outbox").touch()
    (outbox / "backend.outbox.lock").touch()
    before = sorted(outbox.iterdir())
    assert findings(node) == {}
    assert sorted(outbox.iterdir()) == before  # neither a log nor its index was made


@pytest.mark.parametrize(
    ("offset", "content"), [(0, b"not a database at all"), (4096 + 8, b"\xff" * 4096)]
)
def test_a_damaged_outbox_is_shown(
    node: TreeNode, outbox: Path, offset: int, content: bytes
) -> None:
    path = database(outbox / "backend.outbox")
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)
    finding = findings(node)["backend.outbox"]
    assert finding.state == "problem"
    assert finding.found.startswith("damaged: ")
    assert "undamaged messages" in finding.fix


def test_an_outbox_that_was_set_aside_is_shown_once(node: TreeNode, outbox: Path) -> None:
    for end in ("", "-wal", "-shm"):
        (outbox / f"backend.outbox.damaged-1700000000{end}").touch()
    assert list(findings(node)) == ["backend.outbox.damaged-1700000000"]


def test_files_that_ccagent_would_not_open_are_shown(node: TreeNode, outbox: Path) -> None:
    (outbox / "a.outbox").symlink_to("/etc/passwd")
    (outbox / "b.outbox").mkdir()
    database(outbox / "c.outbox")
    os.link(outbox / "c.outbox", outbox / "c")
    os.mkfifo(outbox / "d.outbox")
    assert {name: each.found.split(",")[0] for name, each in findings(node).items()} == {
        "a.outbox": "a symbolic link",
        "b.outbox": "not a regular file",
        "c.outbox": "a file with 2 names (hard links)",
        "d.outbox": "not a regular file",
    }


def test_a_database_that_is_being_written_is_not_called_damaged(tmp_path: Path) -> None:
    path = database(tmp_path / "backend.outbox")
    with sqlite3.connect(path) as connection:
        connection.execute("pragma journal_mode=wal")
        connection.execute("insert into messages (body) values ('x')")
        assert find_damage(str(path)) == ""
    connection.close()


def test_keys_of_a_unit_are_read_with_its_drop_ins(node: TreeNode) -> None:
    folder = node.path / "usr/lib/systemd/system"
    (folder / "ccagent.service.d").mkdir(parents=True)
    (folder / "ccagent.service").write_text(UNIT)
    (folder / "ccagent.service.d/x.conf").write_text("[Service]\nUser = site\n")
    unit = read_unit(node)
    assert find_values(unit, "User") == ["ccagent", "site"]
    assert list_state_directories(unit) == {"/var/lib/ccagent", "/var/lib/ccagent/outbox"}
    assert find_values(f"{unit}\nStateDirectory=\n", "StateDirectory") == []


def test_a_directory_that_the_unit_makes_need_not_be_there(node: TreeNode) -> None:
    folder = node.path / "usr/lib/systemd/system"
    folder.mkdir(parents=True)
    (folder / "ccagent.service").write_text(UNIT)
    (node.path / "var/lib").mkdir(parents=True)
    table = {
        "sinks": {"a": {"url": "http://a/"}},
        "outbox": {"directory": "/var/lib/ccagent/outbox", "max-bytes": 1},
    }
    assert found(check_space, node, **table)["outbox"].state == "good"


class LiveNode(TreeNode):
    """A tree that the doctor takes for the machine itself."""

    @property
    def is_live(self) -> bool:
        return True


@pytest.mark.skipif(os.geteuid() != 0, reason="root asks for other users")
def test_root_judges_for_the_owner_of_the_directory(tmp_path: Path) -> None:
    live = LiveNode(tmp_path)
    (tmp_path / "outbox").mkdir()
    assert find_service_user(site(live), "/outbox") is None
    os.chown(tmp_path / "outbox", 65534, 65534)
    user = find_service_user(site(live), "/outbox")
    assert user is not None
    assert (user.name, user.uid) == ("nobody", 65534)


@pytest.mark.skipif(os.geteuid() != 0, reason="root asks for other users")
def test_a_process_of_that_user_says_what_it_may_write() -> None:
    nobody = ServiceUser("nobody", 65534, 65534)
    assert find_unwritable(nobody, ["/tmp", "/root", "/etc/passwd"]) == ["/root", "/etc/passwd"]


def test_a_user_that_cannot_be_asked_for_is_one_problem(
    node: TreeNode, outbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(*_: object) -> ServiceUser:
        return ServiceUser("nobody", 65534, 65534)

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr("ccagent.doctor.space.find_service_user", nobody)
    monkeypatch.setattr("subprocess.Popen", fail)
    table = {"sinks": {"a": {"url": "http://a/"}}, "outbox": {"directory": str(outbox)}}
    finding = found(check_space, node, **table)["outbox"]
    assert finding.state == "problem"
    assert finding.found.startswith("cannot ask as user nobody: ")


def test_errors_that_a_running_daemon_reports_are_shown() -> None:
    sinks = {
        "good": SinkCounters(),
        "backend": SinkCounters(restarts=2),
        "other": SinkCounters(queue_error="No space left on device"),
    }
    assert {each.subject: each.found for each in assess_sinks(sinks)} == {
        "thread of sink backend": "continued after 2 unforeseen errors since it started",
        "queue of sink other": "No space left on device",
    }
