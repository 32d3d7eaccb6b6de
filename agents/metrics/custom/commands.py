"""Metrics from commands of the site: [agents.metrics.commands.NAME]."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from ccagent.agents.metrics.pipeline.repeated_call import GRACE, PATIENCE, RepeatedCall

if TYPE_CHECKING:
    from ccagent.agents.metrics.custom.points import CustomMetrics
    from ccagent.agents.metrics.custom.settings import CommandSettings
    from ccagent.agents.metrics.readers.base import Gauge
    from ccagent.machine.node import Node

_OUTPUT_LIMIT = 1024 * 1024


class CommandsReader:
    """Runs commands in the background, each at most once at a time.

    errors: messages of the last reading.
    """

    name = "commands"

    def __init__(self, commands: dict[str, CommandSettings], metrics: CustomMetrics) -> None:
        self.errors: list[str] = []
        self._metrics = metrics
        self._commands = [_Command(name, settings) for name, settings in commands.items()]
        self._stop: tuple[int, int] | None = None

    def begin(self, node: Node) -> None:
        """Start the due commands."""
        self.errors = []
        if self._stop is None:
            self._stop = os.pipe()
        for command in self._commands:
            command.begin(node, self._stop[0], self.errors)

    def read(self, node: Node, *, waits: bool = False) -> list[Gauge]:
        """Return the values of finished commands; others follow in a later sample.

        waits: wait for all commands, because no later sample follows.
        """
        deadline = time.monotonic() + PATIENCE
        found: list[Gauge] = []
        for command in self._commands:
            patience = command.longest if waits else deadline - time.monotonic()
            output = command.call.result(patience, self.errors)
            if output is not None:
                found += self._metrics.gauges(command.name, output, node, self.errors)
        return found

    def close(self) -> None:
        """Stop the running commands."""
        if self._stop is None:
            return
        end, begin = self._stop
        os.close(begin)
        is_over = [command.call.is_over() for command in self._commands]
        if all(is_over):
            os.close(end)  # else a thread may poll the descriptor after its number was reused
        self._stop = None


class _Command:
    """A command of the site, started at its interval."""

    def __init__(self, name: str, settings: CommandSettings) -> None:
        self.name = f"command {name}"
        self.longest = settings.time_limit.seconds + 2 * GRACE
        self.call: RepeatedCall[bytes] = RepeatedCall(self.name, settings.every.seconds)
        self._settings = settings

    def begin(self, node: Node, stop: int, errors: list[str]) -> None:
        def run() -> bytes:
            return node.run(
                self._settings.command,
                time_limit=self._settings.time_limit.seconds,
                output_limit=_OUTPUT_LIMIT,
                stop=stop,
            )

        self.call.begin(node.clock.time(), run, errors)
