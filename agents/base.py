"""Base of all agents and of their settings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, TypeVar

from msgspec import Meta

from ccagent import PRODUCER, __version__
from ccagent.config.duration import Cadence, Duration
from ccagent.config.settings import Settings
from ccagent.counters import AgentCounters
from ccagent.errors import ConfigurationError
from ccagent.log import logger
from ccagent.machine.clock import timestamp
from ccagent.records.envelopes import ErrorObject, KVPair, MetadataObject

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ccagent.errors import EncodingError
    from ccagent.machine.checks import Check
    from ccagent.machine.node import Node
    from ccagent.records.message import Format, Record


class AgentSettings(Settings, frozen=True, kw_only=True):
    """The keys of every table `[agents.NAME]`."""

    every: Annotated[
        Cadence | None,
        Meta(
            description="how often, aligned to the UTC clock: seconds that divide a minute, "
            "minutes that divide an hour, hours that divide a day, or days"
        ),
    ] = None
    on_startup: Annotated[bool, Meta(description="also sample when the daemon starts")] = False
    sinks: Annotated[
        list[str], Meta(description="names of [sinks.NAME]; empty: all with a matching format")
    ] = []
    time_limit: Annotated[
        Duration, Meta(description="time after which a running sample counts as hung")
    ] = Duration("60s")
    extras: Annotated[
        list[str],
        Meta(description="optional fields to send; some consumers refuse them"),
    ] = []
    token_file: Annotated[
        str, Meta(description="file with the API token for meta.token (some consumers refuse it)")
    ] = ""

    def beside(self, agents: Mapping[str, AgentSettings]) -> AgentSettings:  # noqa: ARG002
        """Return the settings adapted to the other agents of the configuration, by name."""
        return self


S = TypeVar("S", bound=AgentSettings)


class Agent(ABC, Generic[S]):
    """Samples one part of the machine.

    State between samples lives in the instance and is bounded. `sample` is called by one thread
    at a time.
    """

    name: ClassVar[str]
    """Name of the agent's table in the configuration and of its command."""
    formats: ClassVar[frozenset[Format]]
    """Formats of the agent's records."""
    extras: ClassVar[frozenset[str]] = frozenset({"attrs", "counters", "format"})
    """Values that `extras` may list."""
    Settings: ClassVar[type[AgentSettings]]

    def __init__(self, settings: S, wanted: frozenset[Format]) -> None:
        unknown = set(settings.extras) - self.extras
        if unknown:
            raise ConfigurationError(
                f"agents.{self.name}.extras: {min(unknown)!r} is unknown; "
                f"there are {', '.join(map(repr, sorted(self.extras)))}"
            )
        self.settings = settings
        self.wanted = wanted
        self.counters = AgentCounters()

    receivers: frozenset[str] = frozenset({""})
    """Receivers of the agent's envelopes; an empty text: any program."""

    is_blind = False
    """True if the last sample read no value at all. The agent has logged the reason.

    A one-shot command then ends with exit status 1.
    """

    is_only_sample = False
    """True for the only sample of this process. No state has to be kept then."""

    def prepare(self, node: Node) -> float:  # noqa: ARG002 - used by overrides
        """Take a first reading for rates; return the seconds after which a sample has them."""
        return 0.0

    @abstractmethod
    def sample(self, node: Node) -> Iterable[Record]:
        """Read the machine once. Must not raise on any content of /proc or /sys."""

    def checks(self, node: Node) -> Iterable[Check]:  # noqa: ARG002 - used by overrides
        """Return the checks of `ccagent doctor` for this agent with these settings."""
        return ()

    def commit_sample(self) -> None:
        """Called after every record of the last sample was queued or delivered."""

    def save_state(self) -> None:
        """Called when every record so far is acknowledged or in a queue on disk.

        Agents write their state files here. Records in memory are lost when the process ends, and
        the next process must send them again.
        """

    def note_unencodable(self, record: str, error: EncodingError) -> None:
        """Count a record that can't be encoded, and log why, once per hour.

        Users control the content of some records, and so the reasons.
        """
        self.counters.unencodable += 1
        logger.warning(
            "agent %s: %s can't be encoded and is left out: %s", self.name, record, error,
            key=f"unencodable {self.name}",
        )  # fmt: skip

    def close(self) -> None:
        """Close all files, connections and programs of the agent."""

    @classmethod
    def has_own_peer(cls, table: Mapping[str, object]) -> bool:
        """Return whether an agent with this table works without any sink."""
        del table
        return False

    def describe(self) -> dict[str, Any]:
        """Return the fields of `ccagent status --json` besides counters.

        Any thread may call this.
        """
        return {}

    def attributes(self) -> dict[str, str]:
        """Return the `attrs` of `meta`, such as the process source, for `extras = ["attrs"]`."""
        return {}

    def metadata(self) -> MetadataObject:
        """Return the `meta` object of this agent's envelopes. Raise as read_secret does."""
        extras = self.settings.extras
        attributes = self.attributes() if "attrs" in extras else {}
        token = ""
        if self.settings.token_file:
            from ccagent.config.secret import read_secret

            token = read_secret(self.settings.token_file)
        return MetadataObject(
            producer=PRODUCER,
            version=__version__,
            format=0 if "format" in extras else None,
            attrs=[KVPair(key=key, value=value) for key, value in attributes.items()],
            token=token,
        )


def make_error(node: Node, detail: str) -> ErrorObject:
    """Return an error object for an envelope, with the time and this node."""
    return ErrorObject(
        time=timestamp(node.clock.time()),
        detail=detail,
        cluster=node.cluster,
        node=node.hostname,
    )
