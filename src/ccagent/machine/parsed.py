"""Reading a file of the machine and parsing it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ccagent.errors import UnparsableError
from ccagent.machine.node import LARGEST_FILE

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.machine.node import Node

T = TypeVar("T")


def read_parsed(node: Node, path: str, parse: Callable[[bytes], T], limit: int = LARGEST_FILE) -> T:
    """Return the result of `parse` for a file; its UnparsableError then begins with the path.

    Raises as `Node.read` does.
    """
    content = node.read(path, limit)
    try:
        return parse(content)
    except UnparsableError as error:
        raise UnparsableError(f"/{path}: {error}") from error
