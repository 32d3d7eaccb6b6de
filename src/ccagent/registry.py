"""Registry of agents, transports, GPU vendors, tables and the store's pages: names and classes.

Built-in classes are imported at first use. Installed entry points (groups `ccagent.agents`,
`ccagent.transports` and `ccagent.gpus`) are searched only for names that are not built in.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ccagent.errors import ConfigurationError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable

AGENTS = {
    "sample": "ccagent.agents.sonar.agent:SampleAgent",
    "sysinfo": "ccagent.agents.sysinfo.agent:SysinfoAgent",
    "jobs": "ccagent.agents.slurm.jobs.agent:JobsAgent",
    "cluster": "ccagent.agents.slurm.cluster:ClusterAgent",
    "lustre": "ccagent.agents.lustre.agent:LustreAgent",
    "metrics": "ccagent.agents.metrics.agent:MetricsAgent",
    "fast": "ccagent.agents.fast.agent:FastAgent",
    "energy": "ccagent.agents.energy.agent:EnergyAgent",
    "jobio": "ccagent.agents.jobio.agent:JobIoAgent",
    "log": "ccagent.agents.log:LogAgent",
}
"""Agents by the name of their table and command."""

TRANSPORTS = {
    "stdout": "ccagent.transports.stdout:StdoutTransport",
    "dir": "ccagent.transports.directory:DirectoryTransport",
    "http": "ccagent.transports.http:HttpTransport",
    "https": "ccagent.transports.http:HttpTransport",
    "ccbackend": "ccagent.transports.cc_backend:CcBackendTransport",
    "ccbackends": "ccagent.transports.cc_backend:CcBackendTransport",
    "kprox": "ccagent.transports.kprox:KproxTransport",
    "kproxs": "ccagent.transports.kprox:KproxTransport",
    "nats": "ccagent.transports.nats:NatsTransport",
    "tls": "ccagent.transports.nats:NatsTransport",
    "mqtt": "ccagent.transports.mqtt:MqttTransport",
    "mqtts": "ccagent.transports.mqtt:MqttTransport",
    "ws": "ccagent.transports.mqtt:MqttTransport",
    "wss": "ccagent.transports.mqtt:MqttTransport",
    "kafka": "ccagent.transports.kafka:KafkaTransport",
    "kafkas": "ccagent.transports.kafka:KafkaTransport",
}
"""Transports by the scheme of their URL."""

GPU_VENDORS = {
    "nvidia": "ccagent.machine.gpu.nvidia:Nvidia",
    "amd": "ccagent.machine.gpu.amd:Amd",
}
"""GPU vendors by the name in `gpu-vendors`."""

TABLES = {
    "controls": "ccagent.controls.settings:ControlsSettings",
    "exporter": "ccagent.exporter.settings:ExporterSettings",
    "migfra": "ccagent.machines.settings:MigfraSettings",
}
"""Settings of the optional tables of a configuration, in the order of their checks."""

STORE_WITH_PAGES = "ccagent.views.web.serving:StoreWithPages"
"""The metric store with web pages, whose packages are imported only if pages are on."""

TABLE_CHECKS = {
    "controls": "ccagent.controls.settings:check_controls",
    "migfra": "ccagent.machines.settings:check_migfra",
}
"""Checks of such settings that need files or libraries. Their errors name whole keys."""


def load_agent(name: str) -> Any:
    """Return the class of an agent. Raise ConfigurationError for an unknown name.

    `agent_class` and its like, beside the base classes, return the types of their room.
    """
    return _load("agent", "ccagent.agents", AGENTS, name)


def load_transport(url: str) -> Any:
    """Return the class for a URL's scheme. Raise ConfigurationError for an unknown scheme."""
    scheme, colon, _ = url.partition(":")
    if not colon:
        raise ConfigurationError(f"{url!r} is not a sink URL such as 'stdout:' or 'dir:/PATH'")
    return _load("kind of sink", "ccagent.transports", TRANSPORTS, scheme.lower())


def load_gpu_vendor(name: str) -> Any:
    """Return the class of a GPU vendor. Raise ConfigurationError for an unknown name."""
    return _load("GPU vendor", "ccagent.gpus", GPU_VENDORS, name)


def load_table(name: str) -> tuple[Any, Callable[[Any], None]]:
    """Return the settings type and the check of an optional table."""
    place = TABLE_CHECKS.get(name)
    return _import(TABLES[name]), _import(place) if place else lambda _: None


def store_with_pages_class() -> Any:
    """Return the class of the metric store with web pages."""
    return _import(STORE_WITH_PAGES)


def agent_names() -> list[str]:
    """Return the names of all agents on this installation."""
    return list(dict.fromkeys([*AGENTS, *_entry_points("ccagent.agents")]))


def transport_names() -> list[str]:
    """Return the URL schemes of all transports on this installation."""
    return list(dict.fromkeys([*TRANSPORTS, *_entry_points("ccagent.transports")]))


def _entry_points(group: str) -> dict[str, str]:
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=group)}


def _load(what: str, group: str, built_in: dict[str, str], name: str) -> Any:
    place = built_in.get(name)
    if place is None:
        installed = _entry_points(group)
        if name not in installed:
            known = [*built_in, *installed]
            raise ConfigurationError(f"{name!r} is an unknown {what}{nearest(name, known)}")
        place = installed[name]
    try:
        return _import(place)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"{what} {name!r}: {place} can't be loaded: {error}") from error


def _import(place: str) -> Any:
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)
