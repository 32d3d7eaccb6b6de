"""Metrics of the site: commands, files and expressions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.agents.metrics.custom.points import CustomMetrics
from ccagent.log import logger

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ccagent.agents.metrics.custom.commands import CommandsReader
    from ccagent.agents.metrics.custom.expressions import Expressions
    from ccagent.agents.metrics.custom.files import FilesReader
    from ccagent.agents.metrics.pipeline.outputs import Value
    from ccagent.agents.metrics.readers.base import Gauge, Metric
    from ccagent.agents.metrics.settings import MetricsSettings
    from ccagent.machine.node import Node


class Custom:
    """Reads `commands`, `files` and `expressions`; imports only configured modules.

    known: metrics of readers. Raise ConfigurationError for an invalid expression.
    """

    def __init__(self, settings: MetricsSettings, known: Mapping[str, Metric]) -> None:
        self._expressions: Expressions | None = None
        self._commands: CommandsReader | None = None
        self._files: FilesReader | None = None
        taken = dict(known)
        if settings.expressions:
            from ccagent.agents.metrics.custom.expressions import Expressions

            is_open = bool(settings.commands or settings.files)
            self._expressions = Expressions(settings.expressions, known, is_open=is_open)
            taken |= self._expressions.metrics
        self._custom = CustomMetrics(taken)
        if settings.commands:
            from ccagent.agents.metrics.custom.commands import CommandsReader

            self._commands = CommandsReader(settings.commands, self._custom)
        if settings.files:
            from ccagent.agents.metrics.custom.files import FilesReader

            self._files = FilesReader(settings.files, self._custom)

    @property
    def metrics(self) -> dict[str, Metric]:
        """Metrics of expressions, and all metrics of commands and files seen so far."""
        if self._expressions is None:
            return self._custom.metrics
        return self._expressions.metrics | self._custom.metrics

    @property
    def operands(self) -> set[str]:
        """Metrics used in expressions."""
        if self._expressions is None:
            return set()
        return {name for names in self._expressions.operands.values() for name in names}

    def begin(self, node: Node) -> None:
        """Start the due commands. They run while readers read."""
        if self._commands is not None:
            self._commands.begin(node)

    def collect(self, node: Node, *, waits: bool) -> list[Gauge]:
        """Return the values of files and commands. Errors are logged, rate-limited.

        waits: wait for running commands, because no later sample follows.
        """
        found: list[Gauge] = []
        errors: list[str] = []
        if self._files is not None:
            found += self._files.read(node)
            errors += self._files.errors
        if self._commands is not None:
            found += self._commands.read(node, waits=waits)
            errors += self._commands.errors
        for error in errors:
            logger.warning("agent metrics: %s", error)
        return found

    def compute(self, values: Iterable[Value]) -> list[Value]:
        """Return the values of expressions, computed from all values of a sample."""
        return [] if self._expressions is None else self._expressions.values(values)

    def find_missing(self, seen: Iterable[str]) -> dict[str, set[str]]:
        """Return the operands missing in `seen`, by expression."""
        found: dict[str, set[str]] = {}
        if self._expressions is not None:
            here = set(seen)
            for name, operands in self._expressions.operands.items():
                found[name] = operands - here
                if not found[name]:
                    here.add(name)
        return found

    def close(self) -> None:
        """Stop running commands."""
        if self._commands is not None:
            self._commands.close()
