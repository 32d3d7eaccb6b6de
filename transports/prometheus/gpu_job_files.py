"""Files that tell dcgm-exporter which job has a card: its option --hpc-job-mapping-dir.

A file is named after the number of the card, or `CARD.INSTANCE`, and holds a job id a line.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from typing import TYPE_CHECKING

from ccagent.errors import CcagentError, NotHereError, NotPermittedError
from ccagent.log import logger
from ccagent.machine.private_directories import open_directory
from ccagent.machine.private_files import replace_file

if TYPE_CHECKING:
    from ccagent.machine.node import Node
    from ccagent.transports.prometheus.sources import CardsOnNode, NodeSources

_EVERY = 15.0
_FILE = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,4})?", re.ASCII)
_MODE = 0o644


class GpuJobFiles:
    """Keeps the files of a directory as the allocations are. Only changed ones are written."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._written: dict[str, bytes] | None = None

    def write(self, cards: CardsOnNode) -> None:
        """Write the files of allocated cards, and remove those of free ones. Logs what fails."""
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
        """Remove the files of cards that no job has: dcgm-exporter reads them all."""
        directory = open_directory(self._directory)
        try:
            # The descriptor only stands for a place (O_PATH), and can't be listed itself.
            for name in os.listdir(f"/proc/self/fd/{directory}"):
                if _FILE.fullmatch(name) and name not in wanted:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=directory)
        finally:
            os.close(directory)


def keep_gpu_jobs(
    directory: str, node: Node, sources: NodeSources, closing: threading.Event
) -> None:
    """Keep the files in a thread, whether anybody scrapes or not, until `closing` is set."""
    files = GpuJobFiles(directory)

    def keep() -> None:
        while True:
            try:
                files.write(sources.cards.get(node))
            except NotHereError:
                pass  # no card: there is nothing to write
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
