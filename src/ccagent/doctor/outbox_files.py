"""Check for damaged queue files, and for files that ccagent would refuse."""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from typing import TYPE_CHECKING
from urllib.parse import quote

from ccagent.doctor.finding import Finding
from ccagent.machine.checks import list_names
from ccagent.queue.files import SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.machine.node import Node

_DAMAGED = f"{SUFFIX}.damaged-"
_SECONDS = 5.0
_STEPS = 10_000
_AGAIN = 0.2


def check_files(node: Node, directory: str) -> Iterator[Finding]:
    """Yield a problem for each unusable file."""
    for name in list_names(node, directory.lstrip("/")):
        path = os.path.join(directory, name)
        place = node.root.rstrip("/") + path
        if _DAMAGED in name and not name.endswith(("-wal", "-shm")):
            yield _make_problem(
                path,
                "renamed because it was damaged; its undamaged messages are in a new file",
                "messages in damaged parts of it were not sent",
                "keep it for an examination, or remove it",
            )
        elif name.endswith(SUFFIX) and (reason := _reason_against(place)):
            yield _make_problem(
                path,
                reason,
                "its messages cannot be sent, and new ones are not stored in it",
                "move it away while ccagent does not run; the service then creates a new one",
            )
        elif name.endswith(SUFFIX) and (reason := find_damage(place)):
            yield _make_problem(
                path,
                reason,
                "messages in damaged parts of it are lost",
                "let the service run: it sets the file aside and sends the undamaged messages",
            )


def find_damage(path: str) -> str:
    """Return the damage of a database, or "". Writes nothing, not even another file."""
    reason = _check(path)
    if reason and _has_content(f"{path}-wal"):
        time.sleep(_AGAIN)  # a running daemon may be moving its log into the file
        reason = _check(path)
    return reason


def _check(path: str) -> str:
    """Check the pages of a database file. Source: sqlite.org/uri.html, immutable."""
    deadline = time.monotonic() + _SECONDS
    try:
        if not _has_content(path):
            return ""
        connection = sqlite3.connect(f"file:{quote(path)}?mode=ro&immutable=1", uri=True)
        try:
            connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
            found = [row[0] for row in connection.execute("PRAGMA quick_check(1)")]
        finally:
            connection.close()
    except sqlite3.OperationalError:
        return ""  # the check was interrupted, or this user may not read the file
    except sqlite3.DatabaseError as error:
        return f"damaged: {error}"
    return "" if found == ["ok"] else f"damaged: {' '.join(str(found[0]).split())}"


def _reason_against(path: str) -> str:
    """Return the reason why ccagent would refuse a file, or ""."""
    try:
        status = os.lstat(path)
    except OSError as error:
        return error.strerror or str(error)
    if stat.S_ISLNK(status.st_mode):
        return "a symbolic link, which ccagent does not follow"
    if not stat.S_ISREG(status.st_mode):
        return "not a regular file"
    if status.st_nlink > 1:
        return f"a file with {status.st_nlink} names (hard links)"
    return ""


def _has_content(path: str) -> bool:
    try:
        return os.stat(path).st_size > 0
    except OSError:
        return False


def _make_problem(path: str, found: str, impact: str, fix: str) -> Finding:
    return Finding("outbox", path, "problem", found, fix, [impact])
