"""The state file of checkpoints: the time of the last checkpoint, and the nodes that are behind."""

from __future__ import annotations

import msgspec

from ccagent.errors import NotPermittedError
from ccagent.log import logger
from ccagent.service.private_files import replace_file

_LARGEST = 64 << 20


class NodeBehind(msgspec.Struct, frozen=True):
    """A node whose last checkpoint failed. since: time of the first value without a checkpoint."""

    cluster: str
    node: str
    since: int


class CheckpointState(msgspec.Struct, frozen=True):
    """until: time before which all values are in files, except values of the nodes behind."""

    until: int = 0
    behind: list[NodeBehind] = []


def read_state(path: str) -> CheckpointState:
    """Return the state. Return an empty state if the file is missing or unusable."""
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(_LARGEST), type=CheckpointState)
    except FileNotFoundError:
        return CheckpointState()
    except (OSError, ValueError, msgspec.DecodeError) as error:
        logger.warning("%s: %s; the next checkpoint will contain all values", path, error)
        return CheckpointState()


def write_state(path: str, state: CheckpointState) -> None:
    """Replace the file. A failure is logged; the next checkpoint is then larger."""
    try:
        replace_file(path, msgspec.json.encode(state))
    except (OSError, NotPermittedError) as error:
        logger.error("%s: %s", path, getattr(error, "strerror", None) or error)
