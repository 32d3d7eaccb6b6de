"""Files that map cards to jobs for dcgm-exporter's option --hpc-job-mapping-dir.

The name of a file is the number of a card, or `CARD.INSTANCE`. Each line is a job id.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from typing import TYPE_CHECKING

from ccagent.errors import CcagentError, NotHereError, NotPermittedError
from ccagent.log import logger
from ccagent.service.private_directories import open_directory
from ccagent.service.private_files import replace_file

if TYPE_CHECKING:
    from ccagent.exporter.sources import CardsOnNode, NodeSources
    from ccagent.machine.node import Node

_EVERY = 15.0
_FILE = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,4})?", re.ASCII)
_MODE = 0o644


class GpuJobFiles:
    """The files of a directory, kept equal to the allocations. Only changed files are written."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._written: dict[str, bytes] | None = None

    def write(self, cards: CardsOnNode) -> None:
        """Write the files of allocated cards and remove those of free cards. Log failures."""
        jobs: dict[str, list[int]] = {}
        for each in cards.allocations:
            for card in each.cards:
                jobs.setdefault(str(card), []).append(each.job)
        wanted = {
            name: "".join(f"{job}\n" for job in sorted(each)).encode()
            for name, each in jobs.items()
        }
        if wanted == self._written:
            return
        try:
            for name, content in wanted.items():
                if self._written is None or self._written.get(name) != content:
                    replace_file(os.path.join(self._directory, name), content, _MODE)
            self._remove_others(set(wanted))
        except (OSError, NotPermittedError) as error:
            self._written = None
            logger.warning("exporter: gpu-job-directory: %s", error)
            return
        self._written = wanted

    def _remove_others(self, wanted: set[str]) -> None:
        """Remove the files of free cards: dcgm-exporter reads all files."""
        directory = open_directory(self._directory)
        try:
            # A descriptor opened with O_PATH can't be listed itself.
            for name in os.listdir(f"/proc/self/fd/{directory}"):
                if _FILE.fullmatch(name) and name not in wanted:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=directory)
        finally:
            os.close(directory)


def keep_gpu_jobs(
    directory: str, node: Node, sources: NodeSources, closing: threading.Event
) -> None:
    """Update the files in a thread, independent of scrapes, until `closing` is set."""
    files = GpuJobFiles(directory)

    def keep() -> None:
        while True:
            try:
                files.write(sources.cards.get(node))
            except NotHereError:
                pass  # no card, no files
            except CcagentError as error:
                logger.warning("exporter: gpu-job-directory: %s", error)
            except Exception:  # noqa: BLE001 - the next turn may work
                logger.exception("exporter: gpu-job-directory: unforeseen error")
            if closing.wait(_EVERY):
                return

    try:
        threading.Thread(target=keep, name="exporter-gpu-jobs", daemon=True).start()
    except RuntimeError as error:
        logger.error("exporter: gpu-job-directory: no thread: %s", error)
