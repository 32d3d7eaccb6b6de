"""Registry of agents, transports, GPU vendors and the store's pages: names and classes.

Built-in classes are imported at first use. Installed entry points (groups `ccagent.agents`,
`ccagent.transports` and `ccagent.gpus`) are searched only for names that are not built in.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ccagent.errors import ConfigurationError

if TYPE_CHECKING:
    from ccagent.agents.base import Agent
    from ccagent.machine.gpu.vendor import GpuVendor
    from ccagent.transports.base import Transport

AGENTS = {
    "sample": "ccagent.agents.sonar.agent:SampleAgent",
    "sysinfo": "ccagent.agents.sysinfo.agent:SysinfoAgent",
    "jobs": "ccagent.agents.slurm.jobs.agent:JobsAgent",
    "cluster": "ccagent.agents.slurm.cluster.agent:ClusterAgent",
    "lustre": "ccagent.agents.lustre.agent:LustreAgent",
    "metrics": "ccagent.agents.metrics.agent:MetricsAgent",
    "fast": "ccagent.agents.fast.agent:FastAgent",
    "energy": "ccagent.agents.energy.agent:EnergyAgent",
    "jobio": "ccagent.agents.jobio.agent:JobIoAgent",
    "log": "ccagent.agents.log.agent:LogAgent",
}
"""Agents by the name of their table and command."""

TRANSPORTS = {
    "stdout": "ccagent.transports.stdout:StdoutTransport",
    "dir": "ccagent.transports.directory:DirectoryTransport",
    "http": "ccagent.transports.http.transport:HttpTransport",
    "https": "ccagent.transports.http.transport:HttpTransport",
    "ccbackend": "ccagent.transports.http.cc_backend:CcBackendTransport",
    "ccbackends": "ccagent.transports.http.cc_backend:CcBackendTransport",
    "kprox": "ccagent.transports.http.kprox:KproxTransport",
    "kproxs": "ccagent.transports.http.kprox:KproxTransport",
    "nats": "ccagent.transports.nats.transport:NatsTransport",
    "tls": "ccagent.transports.nats.transport:NatsTransport",
    "mqtt": "ccagent.transports.mqtt.transport:MqttTransport",
    "mqtts": "ccagent.transports.mqtt.transport:MqttTransport",
    "ws": "ccagent.transports.mqtt.transport:MqttTransport",
    "wss": "ccagent.transports.mqtt.transport:MqttTransport",
    "kafka": "ccagent.transports.kafka.transport:KafkaTransport",
    "kafkas": "ccagent.transports.kafka.transport:KafkaTransport",
}
"""Transports by the scheme of their URL."""

GPU_VENDORS = {
    "nvidia": "ccagent.machine.gpu.nvidia:Nvidia",
    "amd": "ccagent.machine.gpu.amd:Amd",
}
"""GPU vendors by the name in `gpu-vendors`."""

STORE_WITH_PAGES = "ccagent.views.web.serving:StoreWithPages"
"""The metric store with web pages, whose packages are imported only if pages are on."""


def agent_class(name: str) -> type[Agent[Any]]:
    """Return the class of an agent. Raise ConfigurationError for an unknown name."""
    found: type[Agent[Any]] = _load("agent", "ccagent.agents", AGENTS, name)
    return found


def transport_class(url: str) -> type[Transport]:
    """Return the class for a URL's scheme. Raise ConfigurationError for an unknown scheme."""
    scheme, colon, _ = url.partition(":")
    if not colon:
        raise ConfigurationError(f"{url!r} is not a sink URL such as 'stdout:' or 'dir:/PATH'")
    found: type[Transport] = _load("kind of sink", "ccagent.transports", TRANSPORTS, scheme.lower())
    return found


def gpu_vendor_class(name: str) -> type[GpuVendor]:
    """Return the class of a GPU vendor. Raise ConfigurationError for an unknown name."""
    found: type[GpuVendor] = _load("GPU vendor", "ccagent.gpus", GPU_VENDORS, name)
    return found


def store_with_pages_class() -> Any:
    """Return the class of the metric store with web pages."""
    module, _, name = STORE_WITH_PAGES.partition(":")
    return getattr(import_module(module), name)


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
            from ccagent.config.settings import nearest

            known = [*built_in, *installed]
            raise ConfigurationError(f"{name!r} is an unknown {what}{nearest(name, known)}")
        place = installed[name]
    module, _, attribute = place.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"{what} {name!r}: {place} can't be loaded: {error}") from error
