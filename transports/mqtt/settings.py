"""The keys of a sink `mqtt://`, `mqtts://`, `ws://` or `wss://`, and their check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from ccagent.errors import ConfigurationError
from ccagent.net.tls import check_network
from ccagent.net.urls import split_url
from ccagent.transports.mqtt.topics import check_template
from ccagent.transports.network import NetworkSinkSettings

if TYPE_CHECKING:
    from urllib.parse import SplitResult

PORTS = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}
ENCRYPTED = frozenset({"mqtts", "wss"})
WEBSOCKETS = frozenset({"ws", "wss"})


class MqttSettings(NetworkSinkSettings, frozen=True, kw_only=True):
    """Keys of a sink `mqtt://`, `mqtts://`, `ws://` or `wss://`."""

    protocol: Annotated[Literal["3.1.1", "5"], Meta(description="version of MQTT")] = "5"
    qos: Annotated[
        Literal[0, 1, 2],
        Meta(description="0: not acknowledged; 1: acknowledged; 2: acknowledged twice"),
    ] = 1
    topic: Annotated[
        str,
        Meta(description="topic of a message; an empty level {prefix} is omitted"),
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
    target = split_url(settings.url)
    if target.fragment or (
        target.scheme not in WEBSOCKETS and (target.path.strip("/") or target.query)
    ):
        raise ConfigurationError(
            f"url: expected {target.scheme}://HOST[:PORT]; the topic is set by the key topic"
        )
    check_template("topic", settings.topic, "prefix", "cluster", "kind", "node")
    check_template("client-id", settings.client_id, "cluster", "node")
    if settings.status_topic:
        check_template("status-topic", settings.status_topic, "prefix", "cluster", "node")
    if bool(settings.user) != bool(settings.password_file):
        raise ConfigurationError("user and password-file need each other")
    check_network(
        settings,
        [target.hostname or ""],
        is_encrypted=target.scheme in ENCRYPTED,
        secret=settings.password_file,
    )
    return target
