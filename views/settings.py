"""Settings of views: the metric store, hardware of nodes, thresholds of verdicts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, field

from ccagent.config import common_keys
from ccagent.config.duration import Duration
from ccagent.config.files import convert, read_regular_file
from ccagent.config.settings import Settings
from ccagent.errors import ConfigurationError, UnparsableError, nearest
from ccagent.machine.hostlist import expand
from ccagent.stores.metrics.page_settings import JobThresholds
from ccagent.views.amounts import GB
from ccagent.views.job.figures import NodeHardware

if TYPE_CHECKING:
    from ccagent.transports.http import HttpSettings

_LARGEST = 1 << 20


class NodeHardwareSettings(Settings, frozen=True, kw_only=True):
    """The keys of [nodes.NAME]; NAME is a host range such as `n[042-099]`."""

    cores: Annotated[float, Meta(ge=0, description="cores of a node, as Slurm counts them")] = 0.0
    memory: Annotated[float, Meta(ge=0, description="GB of memory of a node")] = 0.0
    gpus: Annotated[int, Meta(ge=0, description="GPUs of a node")] = 0


class ViewSettings(Settings, frozen=True, kw_only=True):
    """The keys of views.toml."""

    store: Annotated[
        str, Meta(description="URL of the metric store for `ccagent job`; empty: this node only")
    ] = ""
    token_file: Annotated[str, Meta(description="file with the token for the store")] = ""
    ca_file: common_keys.CaFile = ""
    allow_cleartext: common_keys.AllowCleartext = False
    time_limit: Annotated[
        Duration, Meta(description="time limit of a connection attempt, and of each response")
    ] = Duration("30s")
    preset: Annotated[
        Literal["clustercockpit", "spec", "base", "cc-metric-collector"],
        Meta(description="unit preset of the agents that send to the store"),
    ] = "clustercockpit"
    thresholds: JobThresholds = JobThresholds()
    nodes: Annotated[
        dict[str, NodeHardwareSettings],
        Meta(description="hardware of nodes by host range, for fragmented and gpu-share"),
    ] = field(default_factory=dict[str, NodeHardwareSettings])

    def http(self) -> HttpSettings:
        """Return the settings of a connection to the store."""
        from ccagent.transports.http import HttpSettings

        return HttpSettings(
            url=self.store,
            token_file=self.token_file,
            ca_file=self.ca_file,
            allow_cleartext=self.allow_cleartext,
            time_limit=self.time_limit,
        )

    def hardware(self) -> dict[str, NodeHardware]:
        """Return the configured hardware by node name."""
        return {
            name: NodeHardware(
                cores=one.cores or None, memory=one.memory * GB or None, cards=one.gpus or None
            )
            for ranges, one in self.nodes.items()
            for name in expand(ranges)
        }


def load_views(path: str | None, *, store: str = "", token_file: str = "") -> ViewSettings:
    """Read and check the settings of views from a file, else from the first existing default file.

    store, token_file: options of the command line; they override the file. Raise
    ConfigurationError if a setting is invalid.
    """
    place = path or next((one for one in default_paths() if os.path.exists(one)), "")
    table = _read_table(place) if place else {}
    if store:
        table |= {"store": store}
    if token_file:
        table |= {"token-file": token_file}
    return check_views(table, place or "command line")


def default_paths() -> list[str]:
    """Return the default paths of settings. Only the daemon may read /etc/ccagent."""
    return [os.path.expanduser("~/.config/ccagent/views.toml"), "/etc/ccagent-views.toml"]


def _read_table(path: str) -> dict[str, Any]:
    import tomllib

    content, _ = read_regular_file(path, _LARGEST)
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path}: {error}") from error


def check_views(table: dict[str, Any], place: str) -> ViewSettings:
    """Raise ConfigurationError with all problems of the settings."""
    from ccagent.transports.http import check_settings
    from ccagent.views.job.rules import RULE_NAMES

    settings = convert(table, ViewSettings, "", place=place)
    problems = [
        f"thresholds.off: {name!r} is not a rule{nearest(name, RULE_NAMES)}"
        for name in settings.thresholds.off
        if name not in RULE_NAMES
    ]
    for ranges in settings.nodes:
        try:
            list(expand(ranges))
        except UnparsableError as error:
            problems.append(f"nodes.{ranges}: {error}")
    if settings.store.partition("://")[0] not in {"", "http", "https"}:
        problems.append("store: expected http://HOST:PORT or https://HOST")
    elif settings.store:
        try:
            check_settings(settings.http())
        except ConfigurationError as error:
            problems += [f"store: {problem}" for problem in error.problems]
    if problems:
        raise ConfigurationError(*(f"{place}: {problem}" for problem in problems))
    return settings
