"""Filters of processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ccagent.machine.node import Node

FIRST_USER = 1000
"""User ids below this belong to the system (UID_MIN in the distributions' /etc/login.defs)."""


class ProcessSelection:
    """Filters by owner and command. These are read first: an excluded process costs little.

    system_jobs: False excludes processes of system users outside of containers.
    users: names of users to exclude; commands: beginnings of command names to exclude.
    cpu_time: minimum CPU time in seconds.
    storage_io: data read and written are bytes of storage instead of read and write calls.
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
