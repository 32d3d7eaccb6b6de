"""Base of all agents, the keys of those that read GPUs, and state files."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, TypeVar

import msgspec
from msgspec import Meta

from ccagent import PRODUCER, RELEASE
from ccagent.config.common_keys import AgentSettings
from ccagent.config.duration import Duration
from ccagent.counters import AgentCounters
from ccagent.errors import ConfigurationError, EncodingError, NotPermittedError
from ccagent.log import logger
from ccagent.machine.clock import timestamp
from ccagent.records.json_encoding import ErrorObject, KVPair, MetadataObject
from ccagent.registry import load_agent
from ccagent.service.private_files import open_private, replace_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ccagent.config.configuration import Configuration
    from ccagent.machine.checks import Check
    from ccagent.machine.gpu.gpus import Gpus
    from ccagent.machine.node import Node
    from ccagent.records.message import Format, Record


__all__ = ["Agent", "AgentSettings", "GpuSettings", "agent_class", "build_agent", "make_error"]

S = TypeVar("S", bound=AgentSettings)

T = TypeVar("T")


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
            version=RELEASE,
            format=0 if "format" in extras else None,
            attrs=[KVPair(key=key, value=value) for key, value in attributes.items()],
            token=token,
        )


class GpuSettings(AgentSettings, frozen=True, kw_only=True):
    """GPU vendors and the time limit of their libraries."""

    renamed: ClassVar[dict[str, str]] = {"gpu-makers": "gpu-vendors"}

    gpu_vendors: Annotated[
        tuple[str, ...], Meta(description="vendors whose cards are read; empty: none")
    ] = ("nvidia", "amd")
    gpu_time_limit: Annotated[
        Duration,
        Meta(description="after this long a sample is sent without the values of a GPU library"),
    ] = Duration("10s")

    def __post_init__(self) -> None:
        from ccagent.machine.gpu.vendor import check_vendor_names

        check_vendor_names("gpu-vendors", self.gpu_vendors)

    def make_gpus(self, node: Node) -> Gpus:
        """Return the libraries of these vendors. The import is needed only where cards are."""
        from ccagent.machine.gpu.gpus import Gpus

        limit = self.gpu_time_limit.seconds
        return Gpus(node, self.gpu_vendors, limit, self.time_limit.seconds)


def make_error(node: Node, detail: str) -> ErrorObject:
    """Return an error object for an envelope, with the time and this node."""
    return ErrorObject(
        time=timestamp(node.clock.time()),
        detail=detail,
        cluster=node.cluster,
        node=node.hostname,
    )


def agent_class(name: str) -> type[Agent[Any]]:
    """Return the class of an agent. Raise ConfigurationError for an unknown name."""
    found: type[Agent[Any]] = load_agent(name)
    return found


def build_agent(configuration: Configuration, name: str) -> Agent[Any]:
    """Return an agent of a checked configuration, for the formats and receivers of its sinks."""
    agent = agent_class(name)(configuration.agents[name], configuration.formats_of(name))
    agent.receivers = configuration.receivers_of(name)
    return agent


def read_state(path: str, kind: type[T], limit: int, otherwise: str) -> T | None:
    """Return the state that `write_state` wrote, or None without a file.

    Also return None, and log a warning that ends with `otherwise`, if the file can't be read, is
    damaged, exceeds `limit` bytes or may belong to another user.
    """
    try:
        with open(open_private(path, os.O_RDONLY), "rb") as file:
            return msgspec.msgpack.decode(file.read(limit), type=kind)
    except FileNotFoundError:
        return None
    except NotPermittedError as error:
        logger.warning("state-file %s; %s", error, otherwise)
        return None
    except OSError as error:
        reason = error.strerror or str(error)
    except (msgspec.MsgspecError, ValueError):
        reason = "damaged"
    logger.warning("state-file %s: %s; %s", path, reason, otherwise)
    return None


def write_state(path: str, state: object) -> None:
    """Replace the state file atomically; log an error if that fails."""
    try:
        replace_file(path, msgspec.msgpack.encode(state))
    except NotPermittedError as error:
        logger.error("state-file %s", error)
    except OSError as error:
        logger.error("state-file %s: %s", path, error.strerror)
