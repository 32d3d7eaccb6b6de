"""The file that remembers until when values are in checkpoints, and which nodes are behind."""

from __future__ import annotations

import os

import msgspec

from ccagent.log import logger

_LARGEST = 64 << 20


class NodeBehind(msgspec.Struct, frozen=True):
    """A node whose last checkpoint failed, and since when its values are missing."""

    cluster: str
    node: str
    since: int


class CheckpointState(msgspec.Struct, frozen=True):
    """until: the values of all nodes before are in files, but for those of nodes behind."""

    until: int = 0
    behind: list[NodeBehind] = []


def read_state(path: str) -> CheckpointState:
    """Return the state; that of a store without checkpoints if the file can't be used."""
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(_LARGEST), type=CheckpointState)
    except FileNotFoundError:
        return CheckpointState()
    except (OSError, ValueError, msgspec.DecodeError) as error:
        logger.warning("%s: %s; the next checkpoint has all values", path, error)
        return CheckpointState()


def write_state(path: str, state: CheckpointState) -> None:
    """Replace the file; a failure is logged, and only makes the next checkpoint larger."""
    partial = f"{path}.tmp"
    try:
        with open(partial, "wb") as file:
            file.write(msgspec.json.encode(state))
        os.replace(partial, path)
    except OSError as error:
        logger.error("%s: %s", path, error.strerror)
