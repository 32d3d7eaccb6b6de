"""The agent `log`: ccagent's own warnings and errors as log messages."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from msgspec import Meta

from ccagent.agents.base import Agent, AgentSettings
from ccagent.log import logger
from ccagent.log_handlers import RateLimitFilter
from ccagent.records.points import LogMessage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.machine.node import Node
    from ccagent.records.message import Format


_KEPT = 1000
_LONGEST = 4096
_LEVELS = {"WARNING": "warn", "CRITICAL": "error"}
"""ClusterCockpit's names of levels (debug, info, warn, error) that differ from Python's."""


class MessageBuffer(logging.Handler):
    """Keeps messages until a sample takes them."""

    def __init__(self, level: str) -> None:
        super().__init__(level.upper())
        self.addFilter(RateLimitFilter())
        self._records: deque[tuple[str, str, float]] = deque(maxlen=_KEPT)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message. Any thread may call this."""
        text = record.getMessage()[:_LONGEST]
        level = _LEVELS.get(record.levelname, record.levelname.lower())
        self._records.append((level, text, record.created))

    def take(self) -> Iterator[tuple[str, str, float]]:
        """Yield and remove the kept messages."""
        for _ in range(len(self._records)):
            yield self._records.popleft()


class LogSettings(AgentSettings, frozen=True, kw_only=True):
    """The keys of [agents.log]."""

    component: Annotated[
        str, Meta(description="the sender, an id of ClusterCockpit", pattern=r"^[A-Za-z0-9_]+\Z")
    ] = "ccnc"
    level: Annotated[Literal["warning", "error"], Meta(description="lowest level to send")] = (
        "warning"
    )


class LogAgent(Agent[LogSettings]):
    """Sends ccagent's own warnings and errors as log messages, a repeated one once per hour."""

    name = "log"
    formats: ClassVar[frozenset[Format]] = frozenset({"line"})
    extras: ClassVar[frozenset[str]] = frozenset()
    Settings = LogSettings

    def __init__(self, settings: LogSettings, wanted: frozenset[Format]) -> None:
        super().__init__(settings, wanted)
        self._messages = MessageBuffer(settings.level)

    def prepare(self, node: Node) -> float:
        """Keep messages from now on. Not called by a check of the settings."""
        del node
        logger.library().addHandler(self._messages)
        return 0.0

    def sample(self, node: Node) -> Iterator[LogMessage]:
        """Yield the messages since the last sample, at most the latest thousand."""
        tags = {"cluster": node.cluster, "hostname": node.hostname, "type": "node"}
        for level, text, time in self._messages.take():
            yield LogMessage(self.settings.component, tags | {"loglevel": level}, text, time)

    def close(self) -> None:
        """Stop keeping messages."""
        logger.library().removeHandler(self._messages)
