"""The agent `log`: ccagent's own warnings and errors as log messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from msgspec import Meta

from ccagent.agents.base import Agent, AgentSettings
from ccagent.log import logger
from ccagent.records.points import LogMessage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.machine.node import Node
    from ccagent.records.message import Format


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
        from ccagent.agents.log.message_buffer import MessageBuffer

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
