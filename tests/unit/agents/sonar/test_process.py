"""Which processes a sample takes, by owner and command."""

from __future__ import annotations

from typing import Any

import pytest

from ccagent.agents.sonar.process import ProcessSelection
from ccagent.machine.node import Node


class NamedUsers(Node):
    """A node that knows two users, whatever the host has."""

    def user(self, uid: int) -> str:
        return {0: "root", 1000: "ada"}.get(uid, f"_user_{uid}")


def wants(
    selection: dict[str, Any], uid: int, command: str = "sh", *, in_container: bool = False
) -> bool:
    node = NamedUsers(hostname="c1-1", cluster="fox")
    return ProcessSelection(**selection).wants(node, uid, command, in_container=in_container)


@pytest.mark.parametrize(("uid", "is_wanted"), [(0, False), (999, False), (1000, True)])
def test_users_begin_at_1000(uid: int, *, is_wanted: bool) -> None:
    assert wants({"system_jobs": False}, uid) is is_wanted
    assert wants({}, uid)


def test_a_container_may_run_as_a_system_user() -> None:
    assert wants({"system_jobs": False}, 0, in_container=True)


@pytest.mark.parametrize(("uid", "is_wanted"), [(0, True), (1000, False), (1001, True)])
def test_users_are_left_out_by_name(uid: int, *, is_wanted: bool) -> None:
    assert wants({"users": ("ada",)}, uid) is is_wanted


@pytest.mark.parametrize(
    ("command", "is_wanted"), [("bash", False), ("ba", True), ("sshd", False), ("", True)]
)
def test_commands_are_left_out_by_their_beginning(command: str, *, is_wanted: bool) -> None:
    assert wants({"commands": ("bas", "sshd")}, 1000, command) is is_wanted


def test_an_empty_beginning_leaves_nothing_out() -> None:
    assert wants({"commands": ("",)}, 1000)
