"""The agent `sysinfo`: hardware, topology and software of this node."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ccagent.errors import UnparsableError
from ccagent.node import LARGEST_FILE

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.node import Node

T = TypeVar("T")


def read_parsed(node: Node, path: str, parse: Callable[[bytes], T], limit: int = LARGEST_FILE) -> T:
    """Read a file and parse it; an UnparsableError of `parse` is given the path.

    Raises as `Node.read` does.
    """
    content = node.read(path, limit)
    try:
        return parse(content)
    except UnparsableError as error:
        raise UnparsableError(f"/{path}: {error}") from None
