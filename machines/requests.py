"""Requests over the broker: to the processes of machines, and to the frameworks of other hosts.

Existing programs ask pscom with a bare word and count any answers. Here an answer counts once per
process, which is the level of its topic after the machine's. The result of a migration names the
process on the destination, so the framework of that host is asked for it.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from ccagent.agents.fast.messages.documents import Fields, parse_document, write_document
from ccagent.errors import UnparsableError
from ccagent.machines.hypervisor import HypervisorError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from ccagent.machines.settings import MigfraSettings

_MOST_ANSWERS = 10_000
_LOCATED_WITHIN = 0.5
"""Seconds to wait for another framework, which may not run."""


class BrokerRequests:
    """Sends requests and collects answers. Threads may share it.

    publish: may lose a message. look: wakes the session, which subscribes and then calls `send`.
    find: returns the process of a machine here, 0 without one or if the policy does not name it.
    """

    def __init__(self, settings: MigfraSettings, host: str, find: Callable[[str], int]) -> None:
        self.publish: Callable[[str, bytes], object] = lambda _topic, _payload: None
        self.look: Callable[[], None] = lambda: None
        self._settings, self._host, self._find = settings, host, find
        self._root = settings.topic
        self._changed = threading.Condition()
        self._answers: dict[tuple[str, str], set[str]] = {}
        """Answers by topic filter and machine."""
        self._waiting: list[tuple[str, bytes]] = []

    def filters(self) -> list[str]:
        """Return the topic of requests to this host, and those of awaited answers."""
        with self._changed:
            return [self._locating(self._host, "locate"), *(each for each, _ in self._answers)]

    def send(self) -> None:
        """Publish the waiting requests. The session has subscribed to the answers before."""
        with self._changed:
            waiting, self._waiting = self._waiting, []
        for topic, payload in waiting:
            self.publish(topic, payload)

    def on_message(self, topic: str, payload: bytes) -> bool:
        """Answer a request or note an answer; return whether the topic is one of them."""
        match topic.removeprefix(f"{self._root}/").split("/"):
            case ["pscom", machine, process, "response"]:
                self._note(self._responses(machine), machine, process)
            case ["migfra", _, "locate" | "located" as kind]:
                try:
                    fields = Fields(parse_document(payload))
                    name, number = fields.text("vm-name"), fields.uint("process-id", 0)
                except UnparsableError:
                    return True
                if kind == "located" and number:
                    self._note(topic, name, str(number))
                elif kind == "locate" and (found := self._find(name)):
                    answer = write_document({"vm-name": name, "process-id": found})
                    self.publish(self._locating(self._host, "located"), answer)
            case _:
                return False
        return True

    def hook(
        self, task: Literal["suspend", "resume"], machine: str, processes: int, task_id: str
    ) -> None:
        """Have processes of a machine suspend or resume their connections.

        Raise HypervisorError if answers are missing.
        """
        payload = task.encode()
        if self._settings.pscom_form == "map":
            payload = write_document({"task": task} | ({"id": task_id} if task_id else {}))
        limit = self._settings.pscom_limit.seconds
        request = (f"{self._root}/pscom/{machine}/any_proc/request", payload)
        found = self._ask(request, self._responses(machine), machine, processes, limit)
        if len(found) < processes:
            raise HypervisorError(
                f"pscom {task}: {len(found)} of {processes} processes answered within {limit:g} s"
            )

    def locate(self, host: str, name: str) -> int:
        """Return the process of a machine on another host; 0 if its framework does not answer."""
        request = (self._locating(host, "locate"), write_document({"vm-name": name}))
        found = self._ask(request, self._locating(host, "located"), name, 1, _LOCATED_WITHIN)
        return int(next(iter(found), 0))

    def _ask(
        self, request: tuple[str, bytes], topic: str, machine: str, count: int, limit: float
    ) -> set[str]:
        """Send a request; return the different answers of `limit` seconds, at least `count`."""
        deadline = time.monotonic() + limit
        with self._changed:
            answers = self._answers[topic, machine] = set()
            self._waiting.append(request)
        self.look()
        with self._changed:
            while len(answers) < count and (rest := deadline - time.monotonic()) > 0:
                self._changed.wait(rest)
            self._answers.pop((topic, machine), None)
            return answers

    def _note(self, topic: str, machine: str, answer: str) -> None:
        with self._changed:
            answers = self._answers.get((topic, machine))
            if answers is not None and len(answers) < _MOST_ANSWERS:
                answers.add(answer)
                self._changed.notify_all()

    def _responses(self, machine: str) -> str:
        return f"{self._root}/pscom/{machine}/+/response"

    def _locating(self, host: str, kind: str) -> str:
        return f"{self._root}/migfra/{host}/{kind}"
