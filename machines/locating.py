"""The process of a machine on another host: asked of that host's framework, over the broker.

A result of a migration goes to the source's topic, and names the process on the destination.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from ccagent.agents.fast.messages.documents import Fields, parse_document, write_document
from ccagent.errors import UnparsableError

if TYPE_CHECKING:
    from collections.abc import Callable

_ANSWERED_WITHIN = 0.5
"""Seconds to wait for another framework, which may not run."""


class MachineLocator:
    """Asks other frameworks for processes, and answers them.

    find: returns the process of a machine here, 0 without one or if the policy does not name it.
    """

    def __init__(self, root: str, host: str, find: Callable[[str], int]) -> None:
        self.publish: Callable[[str, bytes], object] = lambda _topic, _payload: None
        self.look: Callable[[], None] = lambda: None
        self._root, self._host, self._find = root, host, find
        self._changed = threading.Condition()
        self._found: dict[tuple[str, str], int] = {}
        self._waiting: list[tuple[str, str]] = []

    def filters(self) -> list[str]:
        """Return the topic of requests to this host, and those of awaited answers."""
        with self._changed:
            hosts = {host for host, _ in self._found}
        return [self._topic(self._host, "locate"), *(self._topic(h, "located") for h in hosts)]

    def send(self) -> None:
        """Publish the waiting requests. The session has subscribed to the answers before."""
        with self._changed:
            waiting, self._waiting = self._waiting, []
        for host, name in waiting:
            self.publish(self._topic(host, "locate"), write_document({"vm-name": name}))

    def on_message(self, topic: str, payload: bytes) -> bool:
        """Answer a request or note an answer; return whether the topic is one of them."""
        host, _, kind = topic.removeprefix(f"{self._root}/migfra/").partition("/")
        if kind not in {"locate", "located"}:
            return False
        try:
            fields = Fields(parse_document(payload))
            name, process = fields.text("vm-name"), fields.uint("process-id", 0)
        except UnparsableError:
            return True
        if kind == "located":
            with self._changed:
                if (host, name) in self._found:
                    self._found[host, name] = process
                    self._changed.notify_all()
        elif found := self._find(name):
            answer = write_document({"vm-name": name, "process-id": found})
            self.publish(self._topic(self._host, "located"), answer)
        return True

    def ask(self, host: str, name: str) -> int:
        """Return the process of a machine on another host; 0 if its framework does not answer."""
        key, deadline = (host, name), time.monotonic() + _ANSWERED_WITHIN
        with self._changed:
            self._found[key] = 0
            self._waiting.append(key)
        self.look()
        with self._changed:
            while not self._found[key] and (rest := deadline - time.monotonic()) > 0:
                self._changed.wait(rest)
            return self._found.pop(key)

    def _topic(self, host: str, kind: str) -> str:
        return f"{self._root}/migfra/{host}/{kind}"
