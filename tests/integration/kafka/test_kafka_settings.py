"""The keys of `kafka://` and `kafkas://`: what they refuse, and the topics that they give."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest

from ccagent.config.duration import Duration
from ccagent.errors import ConfigurationError
from ccagent.transports.kafka import KafkaTransport, fill_topic
from ccagent.transports.kafka_connection import KafkaSettings
from tests.support.kafka_cluster import PASSWORD, message

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def secret(tmp_path: Path) -> str:
    path = tmp_path / "secret"
    path.write_text(PASSWORD)
    path.chmod(0o600)
    return str(path)


def make(url: str, **keys: Any) -> KafkaTransport:
    return KafkaTransport(KafkaSettings(url=url, **keys))


@pytest.mark.parametrize(
    ("template", "prefix", "topic"),
    [
        ("", "", "fox.sample"),
        ("", "test", "test.fox.sample"),
        ("{prefix}.{kind}.{cluster}-{node}", "test", "test.sample.fox-c1-1"),
        ("{prefix}.{kind}", "", "sample"),
        ("hpc_{kind}", "test", "hpc_sample"),
        ("hpc_{prefix}", "test", "hpc_test"),
        ("monitoring", "", "monitoring"),
    ],
)
def test_topics(template: str, prefix: str, topic: str) -> None:
    make("kafka://h", topic=template)
    assert fill_topic(template, message(prefix=prefix)) == topic


@pytest.mark.parametrize("host", ["192.0.2.1", "localhost,kafka.example.org", "[2001:db8::1]:9"])
def test_a_password_travels_unencrypted_only_on_demand(secret: str, host: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{secret} would be sent unencrypted"):
        make(f"kafka://{host}", password_file=secret)
    make(f"kafka://{host}", password_file=secret, allow_cleartext=True)
    make(f"kafkas://{host}", password_file=secret)
    make("kafka://localhost,127.0.0.2,[::1]:9092", password_file=secret)


@pytest.mark.parametrize(
    "url",
    ["kafka://", "kafka:h", "kafka://h,", "kafka://h/topic", "kafka://h?x=1", "kafka://fox:hid@h"],
)
def test_urls_that_cant_work_are_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="^url: ") as caught:
        make(url)
    assert "hid" not in str(caught.value)


@pytest.mark.parametrize(
    ("scheme", "keys", "reason"),
    [
        ("kafka", {"user": "fox"}, "needs a password-file"),
        ("kafka", {"time_limit": Duration("0s")}, "time-limit"),
        ("kafka", {"topic": "{clster}"}, "topic: the placeholders are"),
        ("kafka", {"topic": "{cluster"}, "topic: the placeholders"),
        ("kafka", {"topic": "a/b"}, "topic: letters"),
        ("kafka", {"topic": ".."}, "topic: letters"),
        ("kafka", {"topic": "x" * 250}, "topic: letters"),
        ("kafka", {"insecure": True}, "for TLS only"),
        ("kafkas", {"ca_file": "/nowhere"}, "/nowhere: No such file"),
        ("kafkas", {"certificate_file": "/nowhere"}, "need each other"),
    ],
)
def test_keys_that_cant_work_are_refused(scheme: str, keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make(f"{scheme}://h", **keys)
    assert reason in str(caught.value)


def test_settings_without_keys_of_kafka_are_enough() -> None:
    KafkaTransport(KafkaSettings(url="KAFKA://h"))


def test_a_missing_library_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_: str) -> None:
        return None

    monkeypatch.setattr(importlib.util, "find_spec", nothing)
    with pytest.raises(
        ConfigurationError, match="kafka:// needs a library: .* -m pip install confluent-kafka"
    ):
        make("kafka://h")
