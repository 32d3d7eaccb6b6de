"""What the doctor finds of outboxes: damage, files that are not ours, and who may write them."""

from __future__ import annotations

import errno
import os
import pwd
from pathlib import Path

import pytest

from ccagent.config.configuration import OutboxSettings
from ccagent.counters import SinkCounters
from ccagent.doctor.daemon import (
    assess_sinks,
    find_service_user,
    find_unwritable,
    find_values,
    list_state_directories,
    read_unit,
)
from ccagent.doctor.finding import Finding
from ccagent.doctor.space import check_files, check_space
from ccagent.machine.node import Node
from ccagent.queue.queue import Queue, make_directory_name
from ccagent.records.message import Message
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


def fill(outbox: Path, sink: str) -> Path:
    """Queue messages for a sink. Return the file."""
    queue = Queue(sink, OutboxSettings(directory=str(outbox)))
    queue.put([Message("c", "n", "sample", "sonar", 1.5, b"{}", "", f"{n}") for n in range(50)])
    queue.close()
    (path,) = (outbox / make_directory_name(sink)).iterdir()
    return path


def findings(node: Node) -> dict[str, Finding]:
    return {
        os.path.basename(each.subject): each
        for each in check_files(node, "/var/lib/ccagent/outbox")
    }


def test_sound_outboxes_are_not_mentioned(node: TreeNode, outbox: Path) -> None:
    fill(outbox, "backend")
    (outbox / "new.queue").mkdir()
    (outbox / "daemon.lock").touch()
    before = sorted(outbox.rglob("*"))
    assert findings(node) == {}
    assert sorted(outbox.rglob("*")) == before


@pytest.mark.parametrize(("offset", "content"), [(0, b"no header"), (2000, b"\xff" * 100)])
def test_a_damaged_outbox_is_shown(
    node: TreeNode, outbox: Path, offset: int, content: bytes
) -> None:
    path = fill(outbox, "backend")
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)
    finding = findings(node)[path.name]
    assert finding.state == "problem"
    assert finding.found.startswith("damaged: ")
    assert "undamaged messages" in finding.fix


def test_a_file_of_the_version_before_is_shown(node: TreeNode, outbox: Path) -> None:
    (outbox / "backend.outbox").touch()
    (outbox / "backend.outbox-wal").touch()
    (finding,) = findings(node).values()
    assert finding.found == "of an earlier version: it waits for its conversion"


def test_files_of_another_sink_are_shown(node: TreeNode, outbox: Path) -> None:
    fill(outbox, "other").parent.rename(outbox / "backend.queue")
    (finding,) = findings(node).values()
    assert finding.found.endswith("for sink other")
    assert "ccagent outbox retry" in finding.fix


def test_files_that_ccagent_would_not_open_are_shown(node: TreeNode, outbox: Path) -> None:
    (outbox / "a.queue").symlink_to("/etc")
    (outbox / "b.queue").touch()
    path = fill(outbox, "d")
    os.link(path, outbox / "link")
    (outbox / "e.queue").mkdir()
    os.mkfifo(outbox / "e.queue/000000000002.log")
    assert {name: each.found.split(",")[0] for name, each in findings(node).items()} == {
        "a.queue": "a symbolic link",
        "b.queue": "not a directory",
        path.name: "a file with 2 names (hard links)",
        "000000000002.log": "not a regular file",
    }


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


@pytest.mark.skipif(os.geteuid() != 0, reason="root asks for other users")
def test_root_judges_for_the_owner_of_the_directory(tmp_path: Path) -> None:
    live = TreeNode(tmp_path)
    live.is_live = True  # the doctor takes it for the machine itself
    (tmp_path / "outbox").mkdir()
    assert find_service_user(site(live), "/outbox") is None
    os.chown(tmp_path / "outbox", 65534, 65534)
    user = find_service_user(site(live), "/outbox")
    assert user is not None
    assert (user.pw_name, user.pw_uid) == ("nobody", 65534)


@pytest.mark.skipif(os.geteuid() != 0, reason="root asks for other users")
def test_a_process_of_that_user_says_what_it_may_write() -> None:
    nobody = pwd.getpwnam("nobody")
    assert find_unwritable(nobody, ["/tmp", "/root", "/etc/passwd"]) == ["/root", "/etc/passwd"]


def test_a_user_that_cannot_be_asked_for_is_one_problem(
    node: TreeNode, outbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(*_: object) -> pwd.struct_passwd:
        return pwd.getpwnam("nobody")

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
