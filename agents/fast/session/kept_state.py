"""What the agent keeps on disk, so that a restart takes up where it was."""

from __future__ import annotations

import os
import threading

import msgspec

from ccagent.agents.state_file import read_state, write_state

_FILE = "fast.state"
_LARGEST = 1024 * 1024
MOST_HANDLED = 1000
"""Requests that are remembered, so that one delivered twice is answered once."""


class AcceptedConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration in force. sender: the topic it came from; time: seconds since 1970."""

    categories: tuple[str, ...]
    repeat: int
    sender: str
    time: float


class MonitoredMachine(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual machine on this node. start: ticks since boot at which its process started."""

    name: str
    process_id: int
    start: int
    is_suspended: bool = False


class PendingMeasurement(msgspec.Struct, frozen=True, kw_only=True):
    """A measurement that was asked for and is not answered yet."""

    key: str
    id: str
    cores: tuple[int, ...]


class AnswerOnItsWay(msgspec.Struct, frozen=True, kw_only=True):
    """The answer that the broker has not confirmed yet. key: of the message in the queue.

    number: packet identifier; is_released: the broker has it, and must not get it again.
    """

    key: str
    number: int
    is_released: bool = False


class KeptState(msgspec.Struct, kw_only=True):
    """All that is kept. handled: keys of requests that were answered, the oldest first."""

    node: str = ""
    configuration: AcceptedConfiguration | None = None
    machines: list[MonitoredMachine] = []
    stopped_jobs: list[str] = []
    handled: list[str] = []
    pending: list[PendingMeasurement] = []
    sending: AnswerOnItsWay | None = None


class StateKeeper:
    """Holds the state and writes it after each change. Without a directory: in memory alone."""

    def __init__(self, directory: str, node: str) -> None:
        self._path = os.path.join(directory, _FILE) if directory else ""
        self._node = node
        self._lock = threading.Lock()
        self.state = KeptState(node=node)

    def load(self) -> None:
        """Read what the last process kept; that of another node, a cloned image, is left."""
        if not self._path:
            return
        found = read_state(self._path, KeptState, _LARGEST, "starting without a configuration")
        if found is not None and found.node == self._node:
            self.state = found

    def save(self) -> None:
        """Write the state; a disk that refuses it is logged, and memory holds it."""
        with self._lock:
            state = self.state
            del state.handled[: max(0, len(state.handled) - MOST_HANDLED)]
            if self._path:
                write_state(self._path, state)

    def note_handled(self, key: str) -> None:
        """Remember a request that is answered."""
        if key not in self.state.handled:
            self.state.handled.append(key)
