"""Mosquitto and its clients."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ccagent.config.duration import Duration
from ccagent.transports.mqtt import MqttSettings, MqttTransport
from tests.support.mqtt_broker import Broker, Subscriber


@pytest.fixture(autouse=True)
def leaves_nothing() -> Iterator[None]:
    """Neither thread nor descriptor is left when all transports are closed."""
    gc.collect()  # earlier tests may have left descriptors to the collector
    threads, descriptors = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    yield
    assert set(threading.enumerate()) == threads
    assert len(os.listdir("/proc/self/fd")) <= descriptors  # an earlier test may close its own


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """Start brokers."""
    made: list[Broker] = []

    def start(*arguments: Any, **keys: Any) -> Broker:
        made.append(Broker(tmp_path / f"broker{len(made)}", *arguments, **keys))
        return made[-1]

    yield start
    for broker in made:
        broker.kill()


@pytest.fixture
def broker(serve: Callable[..., Broker]) -> Broker:
    return serve()


@pytest.fixture
def listen() -> Iterator[Callable[..., Subscriber]]:
    """Start subscribers."""
    made: list[Subscriber] = []

    def start(*arguments: Any, **keys: Any) -> Subscriber:
        made.append(Subscriber(*arguments, **keys))
        return made[-1]

    yield start
    for subscriber in made:
        subscriber.stop()


@pytest.fixture
def connect() -> Iterator[Callable[..., MqttTransport]]:
    """Make transports, with the keys that a test wants."""
    made: list[MqttTransport] = []

    def make(url: str, **keys: Any) -> MqttTransport:
        keys.setdefault("time_limit", Duration("10s"))
        made.append(MqttTransport(MqttSettings(url=url, **keys)))
        return made[-1]

    yield make
    for transport in made:
        transport.close()
