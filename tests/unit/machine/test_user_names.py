"""Names of users of a directory service that is slow, hangs or denies what it knew."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from ccagent.machine.user_names import UserNames, local_users
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Directory:
    """A name service that answers when it is told to."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.known = {70_000: "fox", 70_001: "eve"}
        self.now = 0.0
        self.asked = 0

    def look_up(self, uid: int) -> str:
        self.asked += 1
        self.answers.wait(120)
        return self.known.get(uid, "")

    def names(self, local: str = "/nowhere") -> UserNames:
        return UserNames(self.look_up, lambda: self.now, local=local)


@pytest.fixture
def directory() -> Iterator[Directory]:
    found = Directory()
    yield found
    found.answers.set()


@pytest.mark.slow
def test_a_dead_directory_holds_nobody_up(
    directory: Directory, caplog: pytest.LogCaptureFixture
) -> None:
    directory.answers.clear()
    names = directory.names()
    began = time.monotonic()
    assert [names.find(uid) for uid in range(70_000, 70_200)] == [""] * 200
    assert time.monotonic() - began < 60  # all together, not each
    assert caplog.text.count("the name service does not answer within 3 s") == 1
    directory.answers.set()
    until(lambda: names.find(70_001) == "eve")


@pytest.mark.slow
def test_a_name_of_before_is_better_than_none(directory: Directory) -> None:
    names = directory.names()
    assert names.find(70_000) == "fox"
    directory.now = 3600
    directory.answers.clear()
    assert names.find(70_000) == "fox"


def test_a_directory_that_denies_what_it_knew_is_not_believed(directory: Directory) -> None:
    names = directory.names()
    assert names.find(70_000) == "fox"
    directory.known.clear()  # as while LDAP refuses connections
    directory.now = 3600
    assert names.find(70_000) == "fox"
    directory.known[70_000] = "wolf"
    directory.now += 300
    assert names.find(70_000) == "wolf"


def test_local_users_need_no_answer(directory: Directory, tmp_path: Path) -> None:
    (tmp_path / "passwd").write_bytes(
        b"root:x:0:0::/root:/bin/sh\n\xff:x\n+::::::\nbig:x:99999999999:1::/:\neve:x:70:70::/:\n"
    )
    directory.answers.clear()
    names = directory.names(str(tmp_path / "passwd"))
    assert [names.find(uid) for uid in (0, 70)] == ["root", "eve"]
    assert directory.asked == 0
    assert local_users(str(tmp_path / "passwd")) == {0: "root", 70: "eve"}


def test_a_changed_list_of_local_users_is_read_again(directory: Directory, tmp_path: Path) -> None:
    passwd = tmp_path / "passwd"
    names = directory.names(str(passwd))
    assert names.find(70) == ""
    passwd.write_text("eve:x:70:70::/:\n")
    directory.now = 300
    assert names.find(70) == "eve"


def test_a_missing_list_of_local_users_is_empty() -> None:
    assert local_users("/nowhere") == {}


@pytest.mark.slow
def test_users_are_looked_up_one_after_the_other(directory: Directory) -> None:
    directory.answers.clear()
    names = directory.names()
    threads = [threading.Thread(target=names.find, args=(uid,)) for uid in range(70_000, 70_050)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert (directory.asked, sum(one.is_alive() for one in threads)) == (1, 0)
