"""The keys of a sink of MQTT, their check, and topics: levels separated by slashes."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from ccagent.errors import ConfigurationError
from ccagent.net.mqtt_broker import check_broker
from ccagent.transports import templates
from ccagent.transports.base import NetworkSinkSettings

if TYPE_CHECKING:
    from urllib.parse import SplitResult

_LONGEST = 65535
_WILDCARDS = re.compile(r"[+#\0]")
_NOT_IN_LEVELS = re.compile(r"[+#\0/]")


class MqttSettings(NetworkSinkSettings, frozen=True, kw_only=True):
    """Keys of a sink `mqtt://`, `mqtts://`, `ws://` or `wss://`."""

    protocol: Annotated[Literal["3.1.1", "5"], Meta(description="version of MQTT")] = "5"
    qos: Annotated[
        Literal[0, 1, 2],
        Meta(description="0: not acknowledged; 1: acknowledged; 2: acknowledged twice"),
    ] = 1
    topic: Annotated[
        str, Meta(description="topic of a message; an empty level {prefix} is omitted")
    ] = "{prefix}/{cluster}/{kind}/{node}"
    status_topic: Annotated[
        str, Meta(description="topic with 'online' or 'offline'; empty: none")
    ] = "{cluster}/status/{node}"
    retain_sysinfo: Annotated[
        bool, Meta(description="let the broker retain the latest sysinfo of each node")
    ] = False
    client_id: Annotated[str, Meta(description="unique among all clients of the broker")] = (
        "ccagent-{node}"
    )


def check_settings(settings: MqttSettings) -> SplitResult:
    """Check the keys and return the parts of the URL. Raise ConfigurationError."""
    check_template("topic", settings.topic, "prefix", "cluster", "kind", "node")
    check_template("client-id", settings.client_id, "cluster", "node")
    if settings.status_topic:
        check_template("status-topic", settings.status_topic, "prefix", "cluster", "node")
    return check_broker(settings)


def check_template(key: str, template: str, *known: str) -> None:
    """Check a template of a topic. Raise ConfigurationError if it is invalid."""
    if not template:
        raise ConfigurationError(f"{key}: must not be empty")
    if _WILDCARDS.search(template):
        raise ConfigurationError(f"{key}: the wildcards + and # can't be part of it")
    templates.check_template(key, template, known)


@lru_cache(maxsize=1000)
def fill_topic(template: str, cluster: str, node: str, kind: str, prefix: str) -> str:
    """Return the topic of a template. Raise ValueError if a value can't be part of a topic.

    The level of an empty prefix is omitted. Only a prefix may have several levels.
    """
    values = {"prefix": prefix, "cluster": cluster, "node": node, "kind": kind}
    for name, value in values.items():
        if f"{{{name}}}" not in template or (name == "prefix" and not value):
            continue
        refused = _WILDCARDS if name == "prefix" else _NOT_IN_LEVELS
        if not value or refused.search(value):
            raise ValueError(f"the {name} {value!r} can't be a level of a topic")
    topic = templates.fill_template(template, values, "/")
    if not 0 < len(topic.encode()) <= _LONGEST:
        raise ValueError(f"a topic has 1 to {_LONGEST} bytes")
    return topic
