"""Reading a large file in pieces, in a thread that can be abandoned if it hangs."""

from __future__ import annotations

import os
import queue
import threading
import time
from typing import TYPE_CHECKING

from ccagent.errors import CcagentError, ProgramError, raise_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PIECE = 256 * 1024
_PIECES_AHEAD = 2
_PAUSE = 0.5


def chunks(open_file: Callable[[], int], path: str, time_limit: float) -> Iterator[bytes]:
    """Yield the content of a file; see `Node.chunks`. `open_file` returns its descriptor."""
    reader = _ChunkReader(open_file)
    deadline = time.monotonic() + time_limit
    try:
        while True:
            left = deadline - time.monotonic()
            try:
                # The time limit also applies if pieces arrive steadily.
                piece = reader.pieces.get(timeout=left) if left > 0 else None
            except queue.Empty:
                piece = None
            if piece is None:
                raise ProgramError(f"/{path}: not read within {time_limit:g} s")
            if isinstance(piece, CcagentError):
                raise piece
            if isinstance(piece, OSError):
                raise_for(path, piece)
            if not piece:
                return
            yield piece
    finally:
        reader.is_wanted = False


class _ChunkReader:
    """Reads ahead. Closes the file at its end, after an error, or when the consumer stops."""

    def __init__(self, open_file: Callable[[], int]) -> None:
        self.pieces: queue.Queue[bytes | OSError | CcagentError] = queue.Queue(_PIECES_AHEAD)
        self.is_wanted = True
        self._open = open_file
        threading.Thread(target=self._read, name="reader", daemon=True).start()

    def _read(self) -> None:
        try:
            descriptor = self._open()
        except CcagentError as error:
            self._put(error)
            return
        try:
            while self.is_wanted:
                # The kernel returns a generated file page by page.
                parts: list[bytes] = []
                size = 0
                while size < _PIECE and (part := os.read(descriptor, _PIECE)):
                    parts.append(part)
                    size += len(part)
                self._put(parts[0] if len(parts) == 1 else b"".join(parts))
                if not parts:
                    return
        except OSError as error:
            self._put(error)
        finally:
            os.close(descriptor)

    def _put(self, piece: bytes | OSError | CcagentError) -> None:
        while self.is_wanted:
            try:
                self.pieces.put(piece, timeout=_PAUSE)
            except queue.Full:
                continue
            return
