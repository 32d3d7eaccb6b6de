"""Reading and parsing of the machine's files."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ccagent.errors import CcagentError, NotHereError, UnparsableError, VanishedError
from ccagent.machine.node import LARGEST_FILE, Node, NodeFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Sized


T = TypeVar("T")


def read_parsed(
    node: NodeFiles, path: str, parse: Callable[[bytes], T], limit: int = LARGEST_FILE
) -> T:
    """Return the result of `parse` for a file. Its UnparsableError gets the path as prefix.

    A snapshot of the node returns the same result again, and so do kept files with unchanged
    content: it must not be changed. Raise as `Node.read` does.
    """
    parsed = getattr(node, "parsed", None)
    if parsed is not None and (path, parse) in parsed:
        known: T = parsed[path, parse]
        return known
    content = node.read(path, limit)
    results = getattr(getattr(node, "kept", None) or node, "results", None)
    if results is not None:
        last = results.get(path)
        if last is not None and last[0] == content and last[1] is parse:
            same: T = last[2]
            return same
    try:
        found = parse(content)
    except UnparsableError as error:
        raise UnparsableError(f"/{path}: {error}") from error
    if parsed is not None:
        parsed[path, parse] = found
    if results is not None:
        results[path] = content, parse, found
    return found


def parse_or(
    node: NodeFiles, path: str, parse: Callable[[bytes], T], otherwise: T, limit: int = LARGEST_FILE
) -> T:
    """Return the result of `parse` for a file; `otherwise` if that fails."""
    try:
        return read_parsed(node, path, parse, limit)
    except CcagentError:
        return otherwise


def read_lack(node: Node, *needed: str) -> str:
    """Return a clause that names the needed capabilities that this process lacks."""
    from ccagent.machine.procfs.process_files import STATUS, describe_lack

    return describe_lack(parse_or(node, STATUS, bytes, b""), *needed)


class FileErrors:
    """Base class of readers of files, such as one for each hwthread or job.

    errors: those of the last reading, of `try_parsed` and `try_list` the first per name of a file.
    """

    def __init__(self) -> None:
        self.errors: list[str] = []
        self._missing = ""
        self._reported: set[str] = set()

    def forget_errors(self) -> None:
        """Start a reading: clear the errors."""
        self.errors = []
        self._missing = ""
        self._reported = set()

    def complain(self, kind: str, error: CcagentError) -> None:
        """Add an error, unless this kind of file already has one."""
        if kind not in self._reported:
            self._reported.add(kind)
            self.errors.append(str(error))

    def try_parsed(self, node: NodeFiles, path: str, parse: Callable[[bytes], T]) -> T | None:
        """Read and parse a file; None if it does not exist or can't be parsed."""
        return self.attempt(path, lambda: read_parsed(node, path, parse))

    def try_list(self, node: Node, path: str) -> list[str]:
        """Return the names in a directory; none if it does not exist or can't be listed."""
        return self.attempt(path, lambda: node.list(path)) or []

    def require(self, found: Sized) -> None:
        """Raise the error of the first missing file if nothing was found and nothing failed."""
        if self._missing and not found and not self.errors:
            raise NotHereError(self._missing)

    def attempt(self, path: str, call: Callable[[], T]) -> T | None:
        """Return the result of a call that reads a file; None as for `try_parsed`."""
        try:
            return call()
        except NotHereError as error:
            # Not the error: its frames refer to open files.
            self._missing = self._missing or str(error)
        except VanishedError:
            pass
        except CcagentError as error:
            self.complain(path.rpartition("/")[2], error)
        return None
