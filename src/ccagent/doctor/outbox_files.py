"""Check for damaged queue files, and for files that ccagent would refuse."""

from __future__ import annotations

import os
import stat
import time
from typing import TYPE_CHECKING
from urllib.parse import unquote

from ccagent.doctor.finding import Finding
from ccagent.errors import NotPermittedError
from ccagent.machine.checks import list_names
from ccagent.queue.queue import OLD_SUFFIX, SUFFIX
from ccagent.queue.segment import find_owner, read_segment
from ccagent.queue.segment_directory import DAMAGED, FOREIGN, is_segment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.machine.node import Node
    from ccagent.queue.segment import QueueOwner

_AGAIN = 0.2
_RETRY = "send its messages (`ccagent outbox retry`), or delete them (`ccagent outbox drop`)"


def check_files(node: Node, directory: str) -> Iterator[Finding]:
    """Yield a problem for each file of an outbox that is damaged or can't be used."""
    for name in list_names(node, directory.lstrip("/")):
        path = os.path.join(directory, name)
        place = node.root.rstrip("/") + path
        if f"{OLD_SUFFIX}{DAMAGED}" in name:
            yield _make_problem(
                path,
                "set aside because it was damaged; its undamaged messages are in new files",
                "messages in damaged parts of it were not sent",
                "keep it for an examination, or remove it",
            )
        elif name.endswith((SUFFIX, OLD_SUFFIX)) and (
            reason := _reason_against(place, is_directory=name.endswith(SUFFIX))
        ):
            yield _make_problem(
                path,
                reason,
                "its messages cannot be sent, and new ones are not stored in it",
                "move it away while ccagent does not run; the service then creates a new one",
            )
        elif name.endswith(SUFFIX):
            owner = find_owner(unquote(name.removesuffix(SUFFIX)))
            for file in list_names(node, path.lstrip("/")):
                yield from _check_segment(
                    os.path.join(path, file), os.path.join(place, file), owner
                )


def _check_segment(path: str, place: str, owner: QueueOwner) -> Iterator[Finding]:
    """Yield a problem for a damaged file of a queue, or one of another sink or machine."""
    if not (is_segment(path) or path.endswith((FOREIGN, DAMAGED))):
        return
    try:
        content = read_segment(place, owner)
        if content.damaged:
            time.sleep(_AGAIN)  # a running daemon may be writing a message
            content = read_segment(place, owner)
    except FileNotFoundError:
        return  # a running daemon has sent its messages
    except (OSError, NotPermittedError) as error:
        reason = getattr(error, "strerror", None) or str(error).removeprefix(f"{place}: ")
        yield _make_problem(path, reason, "its messages cannot be sent", "move it away")
        return
    if content.is_foreign and content.header is not None:
        written = content.header.owner
        yield _make_problem(
            path,
            f"queued by host {written.host} for sink {written.sink}",
            "its messages are not sent",
            _RETRY,
        )
    elif content.damaged:
        size = sum(part.size for part in content.damaged)
        yield _make_problem(
            path,
            f"damaged: {size} bytes",
            "messages in damaged parts of it are lost",
            "let the service run: it sends the undamaged messages; check the disk",
        )


def _reason_against(path: str, *, is_directory: bool) -> str:
    """Return the reason why ccagent would refuse a file or directory, or ""."""
    try:
        status = os.lstat(path)
    except OSError as error:
        return error.strerror or str(error)
    if stat.S_ISLNK(status.st_mode):
        return "a symbolic link, which ccagent does not follow"
    if is_directory:
        return "" if stat.S_ISDIR(status.st_mode) else "not a directory"
    if not stat.S_ISREG(status.st_mode):
        return "not a regular file"
    if status.st_nlink > 1:
        return f"a file with {status.st_nlink} names (hard links)"
    return ""


def _make_problem(path: str, found: str, impact: str, fix: str) -> Finding:
    return Finding("outbox", path, "problem", found, fix, [impact])
