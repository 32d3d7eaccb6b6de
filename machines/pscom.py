"""Handshake with pscom: processes of a machine suspend their connections before a migration.

Existing programs take a bare word as request and count any answers. Here an answer counts once per
process, which is the level of its topic after the machine's.
"""

from __future__ import annotations

import re
import threading
import time
from typing import TYPE_CHECKING

from ccagent.agents.fast.messages.structures import ConnectionRequest
from ccagent.machines.hypervisor import HypervisorError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

_MOST_PROCESSES = 10_000


class PscomHooks:
    """Requests to the processes of machines, and their answers.

    publish: may lose a message. look: wakes the session, which subscribes and then calls `send`.
    """

    def __init__(self, root: str, form: Literal["word", "map"], limit: float) -> None:
        self.publish: Callable[[str, bytes], object] = lambda _topic, _payload: None
        self.look: Callable[[], None] = lambda: None
        self._root = root
        self._form = form
        self._limit = limit
        self._changed = threading.Condition()
        self._answers: dict[str, set[str]] = {}
        self._waiting: list[tuple[str, bytes]] = []
        self._topic = re.compile(re.escape(root) + r"/pscom/([^/]+)/([^/]+)/response")

    def filters(self) -> list[str]:
        """Return the topic filters of the machines whose answers are awaited."""
        with self._changed:
            return [f"{self._root}/pscom/{machine}/+/response" for machine in self._answers]

    def send(self) -> None:
        """Publish the waiting requests. The session has subscribed to the answers before."""
        with self._changed:
            waiting, self._waiting = self._waiting, []
        for topic, payload in waiting:
            self.publish(topic, payload)

    def on_message(self, topic: str) -> bool:
        """Count an answer; return whether the topic is one of pscom."""
        match = self._topic.fullmatch(topic)
        if match is None:
            return False
        machine, process = match.groups()
        with self._changed:
            answers = self._answers.get(machine)
            if answers is not None and len(answers) < _MOST_PROCESSES:
                answers.add(process)
                self._changed.notify_all()
        return True

    def request(
        self, task: Literal["suspend", "resume"], machine: str, processes: int, task_id: str
    ) -> None:
        """Send a request and wait for the answers. Raise HypervisorError if some are missing."""
        payload = task.encode()
        if self._form == "map":
            payload = ConnectionRequest(id=task_id, task=task).encode()
        deadline = time.monotonic() + self._limit
        with self._changed:
            self._answers[machine] = set()
            self._waiting.append((f"{self._root}/pscom/{machine}/any_proc/request", payload))
        self.look()
        try:
            with self._changed:
                while len(self._answers[machine]) < processes:
                    rest = deadline - time.monotonic()
                    if rest <= 0:
                        raise HypervisorError(
                            f"pscom {task}: {len(self._answers[machine])} of {processes} processes"
                            f" answered within {self._limit:g} s"
                        )
                    self._changed.wait(rest)
        finally:
            with self._changed:
                self._answers.pop(machine, None)
