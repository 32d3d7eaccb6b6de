"""The keys of a sink `mqtt://`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ccagent.config.configuration import check_sink
from ccagent.errors import ConfigurationError
from ccagent.transports.base import build_transport
from ccagent.transports.mqtt import MqttSettings, MqttTransport, check_settings

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def secret(tmp_path: Path) -> str:
    path = tmp_path / "secret"
    path.write_text("hidden\n")
    path.chmod(0o600)
    return str(path)


@pytest.mark.parametrize("scheme", ["mqtt", "mqtts", "ws", "wss"])
def test_the_scheme_names_the_transport(scheme: str) -> None:
    settings = check_sink({"url": f"{scheme}://broker", "retain-sysinfo": True}, "x", "test")
    transport = build_transport(settings)
    assert isinstance(transport, MqttTransport)
    assert isinstance(settings, MqttSettings)
    assert settings.retain_sysinfo
    assert MqttTransport(MqttSettings(url=f"{scheme}://broker")).is_network


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("mqtt://", "expected mqtt://HOST"),
        ("mqtt://h:0", "expected mqtt://HOST"),
        ("mqtt://h:x", "malformed"),
        ("mqtt://h/topic", "the topic is set by"),
        ("mqtts://h?x", "the topic is set by"),
        ("ws://h/mqtt#x", "the topic is set by"),
        ("mqtt://node:hidden@h", "password-file"),
        ("mqtt://h h", "spaces"),
    ],
)
def test_urls_that_cant_work_are_refused(url: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason) as caught:
        check_settings(MqttSettings(url=url))
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"topic": ""}, "^topic: must not be empty"),
        ({"client_id": ""}, "^client-id: must not be empty"),
        ({"topic": "a/#"}, r"^topic: the wildcards \+ and #"),
        ({"status_topic": "+/x"}, r"^status-topic: the wildcards \+ and #"),
        ({"topic": "{host}"}, "^topic: the placeholders are {prefix}, {cluster}, {kind}, {node};"),
        ({"topic": "{node"}, "^topic: the placeholders are"),
        ({"client_id": "{kind}"}, "^client-id: the placeholders are {cluster}, {node};"),
        (
            {"status_topic": "{kind}"},
            "^status-topic: the placeholders are {prefix}, {cluster}, ",
        ),
        ({"user": "node"}, "^user and password-file need each other"),
        ({"ca_file": "/ca.pem"}, "for TLS only"),
    ],
)
def test_keys_that_cant_work_are_refused(keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        check_settings(MqttSettings(url="mqtt://broker", **keys))


def test_a_password_needs_a_user_and_encryption(secret: str) -> None:
    with pytest.raises(ConfigurationError, match="need each other"):
        check_settings(MqttSettings(url="mqtts://broker", password_file=secret))
    keys: dict[str, Any] = {"user": "node", "password_file": secret}
    for scheme in ("mqtt", "ws"):
        with pytest.raises(ConfigurationError, match="unencrypted"):
            check_settings(MqttSettings(url=f"{scheme}://broker", **keys))
        check_settings(MqttSettings(url=f"{scheme}://broker", allow_cleartext=True, **keys))
        check_settings(MqttSettings(url=f"{scheme}://[::1]:1", **keys))
        check_settings(MqttSettings(url=f"{scheme}s://broker", **keys))


def test_no_status_topic() -> None:
    check_settings(MqttSettings(url="ws://broker/path?a=b", status_topic=""))
