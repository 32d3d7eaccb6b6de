"""A process with the agent `lustre` and its outbox, to be killed and started again by tests.

    python -m tests.support.lustre_agent DIRECTORY NAME URL

It takes a sample for each line with a time on standard input, and answers with `done` when the
records are queued and the state is saved; after `end` when the sink has taken everything.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from ccagent.agents.lustre.agent import LustreAgent, LustreSettings
from ccagent.config.configuration import OutboxSettings, check_sink
from ccagent.queue.sink import Sink
from ccagent.records.encoding import encode
from ccagent.transports.base import build_transport
from tests.support.lustre_day import BEGIN, LustreServer
from tests.support.tree import TreeNode


def open_sink(directory: Path, name: str, url: str, **table: Any) -> Sink:
    """Open the outbox of an agent."""
    settings = check_sink({"url": url, **table}, "store", "test")
    where = OutboxSettings(directory=os.path.join(directory, f"{name}.outbox"))
    return Sink("store", settings, build_transport(settings), where)


class QueueingServer(LustreServer):
    """A server whose agent queues its records in an outbox, which a sink empties."""

    url = ""

    def __init__(self, directory: Path, name: str) -> None:
        super().__init__(directory, name)
        self.sink = open_sink(directory, name, self.url)

    def deliver(self, messages: list[Any]) -> None:
        for message in messages:
            self.sink.put(message)

    def drain(self, seconds: float = 60) -> None:
        """Wait until everything is taken."""
        deadline = time.monotonic() + seconds
        while not self.sink.is_idle:
            assert time.monotonic() < deadline, "the outbox is not empty"
            time.sleep(0.02)

    def close(self) -> None:
        self.sink.close()
        self.sink.join(60)


def main() -> None:
    """Go on where the process before was killed."""
    directory, name, url = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    node = TreeNode(directory / name)
    node.hostname = name
    state = str(directory / f"{name}.state")
    agent = LustreAgent(LustreSettings(state_file=state, source="files"), frozenset({"sonar"}))
    sink = open_sink(directory, name, url)
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "end":
            while not sink.is_idle:
                time.sleep(0.02)
        else:
            node.still.passed = float(line) - BEGIN
            for message in encode(agent.sample(node), ["sonar"], node):
                sink.put(message)
            agent.save_state()
        print("done", flush=True)
    sink.close()
    sink.join(60)


if __name__ == "__main__":
    main()
