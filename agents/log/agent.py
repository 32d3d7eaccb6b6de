"""The agent `log`: sends on what the other agents and the sinks complain of."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from msgspec import Meta

from ccagent.agents.base import Agent, AgentSettings
from ccagent.log import logger
from ccagent.log_handlers import SaidOnce
from ccagent.records.log_message import LogMessage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.machine.node import Node
    from ccagent.records.message import Format

_KEPT = 1000
_LONGEST = 4096
_LEVELS = {"WARNING": "warn", "CRITICAL": "error"}
"""ClusterCockpit's words (debug, info, warn, error) where Python has others."""


class LogSettings(AgentSettings, frozen=True, kw_only=True):
    """The keys of [agents.log]."""

    component: Annotated[
        str,
        Meta(
            description="who speaks, by ClusterCockpit's ids",
            pattern=r"^[A-Za-z0-9_]+\Z",
        ),
    ] = "ccnc"
    level: Annotated[Literal["warning", "error"], Meta(description="and what is more serious")] = (
        "warning"
    )


class LogAgent(Agent[LogSettings]):
    """Warnings and errors of ccagent itself, as log messages; a repeated one once an hour."""

    name = "log"
    formats: ClassVar[frozenset[Format]] = frozenset({"line"})
    extras: ClassVar[frozenset[str]] = frozenset()
    Settings = LogSettings

    def __init__(self, settings: LogSettings, wanted: frozenset[Format]) -> None:
        super().__init__(settings, wanted)
        self._kept = _Kept(settings.level)

    def prepare(self, node: Node) -> float:
        """Keep what is logged from now on; an agent that only checks its settings never does."""
        del node
        logger.library().addHandler(self._kept)
        return 0.0

    def sample(self, node: Node) -> Iterator[LogMessage]:
        """Return what was logged since the last sample, the latest thousand at most."""
        tags = {"cluster": node.cluster, "hostname": node.hostname, "type": "node"}
        for level, text, time in self._kept.taken():
            yield LogMessage(self.settings.component, tags | {"loglevel": level}, text, time)

    def close(self) -> None:
        """Keep nothing any more."""
        logger.library().removeHandler(self._kept)


class _Kept(logging.Handler):
    """Keeps what is logged until it is taken."""

    def __init__(self, level: str) -> None:
        super().__init__(level.upper())
        self.addFilter(SaidOnce())
        self._records: deque[tuple[str, str, float]] = deque(maxlen=_KEPT)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one; called by any thread."""
        text = record.getMessage()[:_LONGEST]
        level = _LEVELS.get(record.levelname, record.levelname.lower())
        self._records.append((level, text, record.created))

    def taken(self) -> Iterator[tuple[str, str, float]]:
        """Give and forget what is there now."""
        for _ in range(len(self._records)):
            yield self._records.popleft()
