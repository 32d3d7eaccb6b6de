"""State of the agent on disk, to continue after a restart."""

from __future__ import annotations

import os
import threading

import msgspec

from ccagent.agents.base import read_state, write_state

_FILE = "fast.state"
_LARGEST = 1024 * 1024
MOST_HANDLED = 1000
"""Number of remembered requests: a repeated one is answered only once."""


class AcceptedConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration in force. sender: topic of the message. time: seconds since 1970."""

    categories: tuple[str, ...]
    repeat: int
    sender: str
    time: float


class MonitoredMachine(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual machine on this node. start: start of its process in ticks since boot.

    is_stopped: a scheduler has stopped its monitoring.
    """

    name: str
    process_id: int
    start: int
    is_suspended: bool = False
    is_stopped: bool = False


class PendingMeasurement(msgspec.Struct, frozen=True, kw_only=True):
    """A requested measurement without an answer so far."""

    key: str
    id: str
    cores: tuple[int, ...]


class AnswerOnItsWay(msgspec.Struct, frozen=True, kw_only=True):
    """The answer in flight, not yet confirmed. key: key of the message in the queue.

    number: packet identifier. is_released: the broker has the answer and must not get it again.
    """

    key: str
    number: int
    is_released: bool = False


class KeptState(msgspec.Struct, kw_only=True):
    """The kept state. handled: keys of answered requests, the oldest first."""

    node: str = ""
    configuration: AcceptedConfiguration | None = None
    machines: list[MonitoredMachine] = []
    stopped_jobs: list[str] = []
    handled: list[str] = []
    pending: list[PendingMeasurement] = []
    sending: AnswerOnItsWay | None = None


class StateFile:
    """Holds the state and writes it after each change; without a directory only in memory."""

    def __init__(self, directory: str, node: str) -> None:
        self._path = os.path.join(directory, _FILE) if directory else ""
        self._node = node
        self._lock = threading.Lock()
        self.state = KeptState(node=node)

    def load(self) -> None:
        """Read the state of the last process; ignore the state of another node (cloned image)."""
        if not self._path:
            return
        state = read_state(self._path, KeptState, _LARGEST, "starting without a configuration")
        if state is not None and state.node == self._node:
            self.state = state

    def save(self) -> None:
        """Write the state. If that fails, log an error and keep it in memory."""
        with self._lock:
            state = self.state
            del state.handled[: max(0, len(state.handled) - MOST_HANDLED)]
            if self._path:
                write_state(self._path, state)

    def note_handled(self, key: str) -> None:
        """Remember an answered request."""
        if key not in self.state.handled:
            self.state.handled.append(key)
