"""Metrics that commands of the site print: [agents.metrics.commands.NAME]."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from ccagent.agents.metrics.pipeline.background import Background
from ccagent.errors import CcagentError

if TYPE_CHECKING:
    from ccagent.agents.metrics.custom.points import CustomMetrics
    from ccagent.agents.metrics.custom.settings import CommandSettings
    from ccagent.agents.metrics.readers.base import Gauge
    from ccagent.machine.node import Node

_OUTPUT_LIMIT = 1024 * 1024
_PATIENCE = 0.1
"""Seconds that a sample waits for all commands: what is quick is told with the same sample."""
_GRACE = 1.0


class CommandsReader:
    """Runs commands from one sample to the next, none of them twice at once.

    errors: what of the last reading is worth a message.
    """

    name = "commands"

    def __init__(self, commands: dict[str, CommandSettings], metrics: CustomMetrics) -> None:
        self.errors: list[str] = []
        self._metrics = metrics
        self._commands = [_Command(name, settings) for name, settings in commands.items()]
        self._stop: tuple[int, int] | None = None

    def begin(self, node: Node) -> None:
        """Start those commands whose time it is."""
        self.errors = []
        if self._stop is None:
            self._stop = os.pipe()
        for command in self._commands:
            command.begin(node, self._stop[0], self.errors)

    def read(self, node: Node, *, waits: bool = False) -> list[Gauge]:
        """Give what those have printed that are ready; the others are asked next time.

        waits: for all of them, because there is no next time.
        """
        deadline = time.monotonic() + _PATIENCE
        found: list[Gauge] = []
        for command in self._commands:
            patience = command.longest if waits else deadline - time.monotonic()
            output = command.output(patience, self.errors)
            if output is not None:
                found += self._metrics.gauges(command.name, output, node, self.errors)
        return found

    def close(self) -> None:
        """End the commands that still run."""
        if self._stop is None:
            return
        end, begin = self._stop
        os.close(begin)
        is_over = [command.is_over() for command in self._commands]
        if all(is_over):
            os.close(end)  # else a thread may look at it, and the number be another file's
        self._stop = None


class _Command:
    """One command. name: for messages. longest: seconds that it may take."""

    def __init__(self, name: str, settings: CommandSettings) -> None:
        self.name = f"command {name}"
        self.longest = settings.time_limit.seconds + 2 * _GRACE
        self._settings = settings
        self._slot: int | None = None
        self._running: Background[bytes] | None = None
        self._output: bytes | None = None

    def begin(self, node: Node, stop: int, errors: list[str]) -> None:
        every = self._settings.every.seconds
        slot = int(node.clock.time() // every) if every else None
        if slot is not None and slot == self._slot:
            return
        self._slot = slot
        self._take(0.0, errors)
        if self._running is not None:
            errors.append(f"{self.name}: it still runs, and is not started again")
            return

        def run() -> bytes:
            return node.run(
                self._settings.command,
                time_limit=self._settings.time_limit.seconds,
                output_limit=_OUTPUT_LIMIT,
                stop=stop,
            )

        try:
            self._running = Background(run, self.name)
        except CcagentError as error:
            errors.append(str(error))

    def output(self, seconds: float, errors: list[str]) -> bytes | None:
        """Give what it has printed since this was asked last, if it is ready."""
        self._take(seconds, errors)
        output, self._output = self._output, None
        return output

    def is_over(self) -> bool:
        return self._running is None or not self._running.is_busy(2 * _GRACE)

    def _take(self, seconds: float, errors: list[str]) -> None:
        running = self._running
        if running is None or running.is_busy(seconds):
            return
        self._running = None
        try:
            self._output = running.answer()
        except CcagentError as error:
            errors.append(f"{self.name}: {error}")
