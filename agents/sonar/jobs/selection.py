"""Filters of processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ccagent.machine.node import Node

FIRST_USER = 1000
"""User ids below belong to the system (UID_MIN of /etc/login.defs, as distributions set it)."""


class ProcessSelection:
    """Filters by owner and command, which are read first, so that unwanted processes cost little.

    system_jobs: false excludes processes of system users, unless they run in a container.
    users: names of users to exclude; commands: beginnings of command names to exclude.
    cpu_time: processes with fewer CPU seconds are excluded.
    storage_io: whether data read and written are those of storage instead of calls.
    """

    def __init__(
        self,
        *,
        system_jobs: bool = True,
        users: tuple[str, ...] = (),
        commands: tuple[str, ...] = (),
        cpu_time: float = 0.0,
        storage_io: bool = False,
    ) -> None:
        self.cpu_time = cpu_time
        self.storage_io = storage_io
        self._system_jobs = system_jobs
        self._users = frozenset(users)
        self._commands = tuple(command for command in commands if command)

    def wants(self, node: Node, uid: int, command: str, *, in_container: bool) -> bool:
        """Return whether the filters by owner and command admit a process."""
        if not self._system_jobs and uid < FIRST_USER and not in_container:
            return False
        if self._commands and command.startswith(self._commands):
            return False
        return not (self._users and node.user(uid) in self._users)
