"""What root writes into directories that another user may write to, place by place."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator

import pytest

from ccagent.agents.base import read_state, write_state
from ccagent.config.configuration import check
from ccagent.config.warnings import unsafe_places
from ccagent.controls.config_keys import Overrides, read_overrides, write_overrides
from ccagent.controls.journal import Audit, Entry, Journal
from ccagent.errors import (
    CcagentError,
    ConfigurationError,
    ControlError,
    LockedError,
    RetryableError,
)
from ccagent.records.message import Message
from ccagent.service.instance import Lock
from ccagent.service.status_socket import Status, StatusSocket
from ccagent.transports.directory import DirectorySettings, DirectoryTransport
from tests.support.hostile_user import KINDS, NOBODY, HostileDirectory, as_nobody, hostile_directory

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be attacked like this")

FILE = "2026/01/31/0+sample-c1.json"


@pytest.fixture
def theirs() -> Iterator[HostileDirectory]:
    with hostile_directory() as made:
        yield made


def message() -> Message:
    return Message("x", "c1", "sample", "sonar", 1_769_860_000.0, b'{"a":1}')


def sink(theirs: HostileDirectory) -> DirectoryTransport:
    return DirectoryTransport(DirectorySettings(url=f"dir:{theirs.path}"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_lock_file(theirs: HostileDirectory, kind: str) -> None:
    path = theirs.plant("ccagent.lock", kind)
    with pytest.raises(ConfigurationError, match=f"lock-directory: {path}"):
        Lock(str(path), "lock-directory")
    theirs.check()


def test_a_lock_that_root_takes_can_be_taken_by_the_service(theirs: HostileDirectory) -> None:
    path = str(theirs.path / "ccagent.lock")
    lock = Lock(path, "lock-directory")
    with pytest.raises(LockedError, match=f"process {os.getpid()}"):
        Lock(path, "lock-directory")
    lock.release()
    assert as_nobody(lambda: Lock(path, "lock-directory").release()) == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["state", "state.new"])
def test_a_state_file(theirs: HostileDirectory, name: str, kind: str) -> None:
    theirs.plant(name, kind)
    path = str(theirs.path / "state")
    if name == "state":
        assert read_state(path, int, 100, "all begins") is None
    write_state(path, 7)
    theirs.check(has_lost_a_name=(name, kind) == ("state", "hard link"))
    assert read_state(path, int, 100, "all begins") == 7
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [FILE, "2026/01/31", "2026/01", "2026"])
def test_files_and_directories_of_a_date(theirs: HostileDirectory, name: str, kind: str) -> None:
    theirs.plant(name, kind)
    transport = sink(theirs)
    with pytest.raises(RetryableError, match=str(theirs.path)):
        transport.send([message()])
    with pytest.raises(RetryableError, match=str(theirs.path)):
        transport.probe(message())
    theirs.check()


def test_files_and_directories_that_root_makes_are_the_owners(theirs: HostileDirectory) -> None:
    before = os.umask(0o077)
    try:
        sink(theirs).send([message()])
    finally:
        os.umask(before)
    place = theirs.path / FILE
    found = [place, place.parent, place.parent.parent]
    assert [each.stat().st_uid for each in found] == [NOBODY] * 3
    assert [stat.S_IMODE(each.stat().st_mode) for each in found] == [0o644, 0o755, 0o755]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "socket"])
def test_a_status_socket_takes_the_place_of_nothing(
    theirs: HostileDirectory, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = theirs.plant("status.sock", kind)
    before = path.lstat().st_ino
    StatusSocket(str(path), raise_).close()
    assert path.lstat().st_ino == before
    assert "a file that is not a socket has this name; no status" in caplog.text
    theirs.check()


def raise_() -> Status:
    raise AssertionError("nobody asks")


def test_a_status_socket_deletes_no_file(
    theirs: HostileDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    path = theirs.path / "notes"
    path.write_text("of the administrator")
    StatusSocket(str(path), raise_).close()
    assert path.read_text() == "of the administrator"
    assert "a file that is not a socket" in caplog.text


def test_a_socket_of_another_service_that_answers_stays(
    theirs: HostileDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    path = theirs.path / "other.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        StatusSocket(str(path), raise_).close()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    assert "another daemon listens there" in caplog.text


def test_a_socket_that_was_replaced_is_not_removed(theirs: HostileDirectory) -> None:
    path = theirs.path / "status.sock"
    listening = StatusSocket(str(path), raise_)
    path.unlink()
    path.symlink_to(theirs.precious)
    listening.close()
    assert path.is_symlink()
    theirs.check()


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_the_mode_of_a_status_socket(theirs: HostileDirectory, umask: int) -> None:
    path = theirs.path / "status.sock"
    before = os.umask(umask)
    try:
        listening = StatusSocket(str(path), raise_)
        assert stat.S_IMODE(path.lstat().st_mode) == 0o660
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    listening.close()
    assert not path.exists()


def test_places_that_others_can_write_to_are_found(theirs: HostileDirectory) -> None:
    inner = theirs.path / "inner"
    inner.mkdir()
    found = unsafe_places(
        check(
            {
                "lock-directory": "/tmp",
                "status-socket": f"{inner}/status.sock",
                "outbox": {"directory": f"{inner}/outbox"},
                "sinks": {"tree": {"url": f"dir://{inner}"}, "safe": {"url": "dir:/root/out"}},
                "agents": {"lustre": {"state-file": "/tmp/state"}},
            },
            "test",
        )
    )
    assert [key for key, _ in found] == [
        "lock-directory", "status-socket", "outbox.directory", "sinks.tree.url",
        "agents.lustre.state-file",
    ]  # fmt: skip
    assert dict(found)["lock-directory"].startswith("/tmp: every user can create files in it")
    assert "belongs to user 65534" in dict(found)["sinks.tree.url"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_journal_and_the_audit_of_controls(theirs: HostileDirectory, kind: str) -> None:
    """The service does not start on a journal of others, and does without such an audit."""
    for name in ("changes.journal", "audit.jsonl"):
        theirs.plant(name, kind)
    with pytest.raises(ControlError, match="state-directory"):
        Journal(str(theirs.path))
    audit = Audit(str(theirs.path), lambda: 0.0, lambda _: None)
    audit.add(Entry(action="set", control="os.swappiness", by="test"))
    theirs.check()


@pytest.mark.parametrize("kind", KINDS)
def test_the_overrides_of_controls(theirs: HostileDirectory, kind: str) -> None:
    path = str(theirs.plant("overrides.toml", kind))
    found = Overrides()
    with contextlib.suppress(CcagentError):  # a socket is like no file
        found = read_overrides(path)
    assert found == Overrides()
    with contextlib.suppress(CcagentError):  # a directory can't be replaced
        write_overrides(path, Overrides())
    theirs.check(has_lost_a_name=kind == "hard link")
