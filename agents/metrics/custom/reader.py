"""What a site adds to the metrics: commands, files, and expressions of all."""

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
    """The tables `commands`, `files` and `expressions`; what isn't configured is not imported.

    known: the metrics of readers. Raises ConfigurationError for an expression that is none.
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
        """The metrics of expressions, and those that commands and files have told so far."""
        if self._expressions is None:
            return self._custom.metrics
        return self._expressions.metrics | self._custom.metrics

    @property
    def operands(self) -> set[str]:
        """The metrics that expressions name."""
        if self._expressions is None:
            return set()
        return {name for names in self._expressions.operands.values() for name in names}

    def begin(self, node: Node) -> None:
        """Start commands whose time it is; they run while readers read."""
        if self._commands is not None:
            self._commands.begin(node)

    def collect(self, node: Node, *, waits: bool) -> list[Gauge]:
        """Give what files hold and commands have printed; what is wrong is said once an hour.

        waits: for commands that are not ready, since there is no other sample.
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
        """Give what expressions make of all values of a sample."""
        return [] if self._expressions is None else self._expressions.values(values)

    def find_missing(self, seen: Iterable[str]) -> dict[str, set[str]]:
        """Give by expression the operands that are not among `seen`."""
        found: dict[str, set[str]] = {}
        if self._expressions is not None:
            here = set(seen)
            for name, operands in self._expressions.operands.items():
                found[name] = operands - here
                if not found[name]:
                    here.add(name)
        return found

    def close(self) -> None:
        """End commands that still run."""
        if self._commands is not None:
            self._commands.close()
