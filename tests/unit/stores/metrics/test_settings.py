"""Values of the configuration that no store can run with."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from ccagent.errors import ConfigurationError
from ccagent.stores.metrics.checking import read_settings

if TYPE_CHECKING:
    from pathlib import Path

NATS = '[nats]\nurl = "nats://h"\n[[nats.subscriptions]]\n'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"retention = {'9' * 5000}", "store.toml: Exceeds the limit"),
        (f"metrics = {'[' * 5000}", "store.toml: maximum recursion depth exceeded"),
        ('listen = ""', "listen: '' is not ADDRESS:PORT"),
        ('retention = "0s"', "retention: expected at least 1s"),
        ('[checkpoints]\ninterval = "0s"', "checkpoints.interval: expected at least 1s"),
        ('[limits]\ntime = "0s"', "limits.time: expected at least 1s"),
        ('backend-url = "localhost:8080"', "backend-url: expected http://"),
        ('jobs-database = "sqlite://jobs"', "jobs-database: expected postgresql://"),
        (
            'jobs-database = "postgresql://db/jobs"\nweb.listen = "127.0.0.1:1"',
            "web.listen: the pages need the embedded table",
        ),
        (f'{NATS}subject = "a b"', "subscriptions 1: subject is required"),
        (f'{NATS}subject = ""', "subscriptions 1: subject is required"),
        (f'{NATS}subject = "a"\nqueue = "b 1"', "subscriptions 1: subject is required"),
        (f'{NATS}subject = "a"\nstream = "x y"', "stream and durable must not contain"),
        (
            f'{NATS}subject = "a"\nstream = "x"\ndurable = "a.b"',
            "stream and durable must not contain",
        ),
    ],
)
def test_values_that_no_store_can_run_with(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "store.toml"
    path.write_text(f'data = "{tmp_path}"\n{text}\n')
    with pytest.raises(ConfigurationError) as found:
        read_settings(str(path))
    assert reason in str(found.value)


def test_an_infinite_cap_of_the_reference_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    store = {"retention-in-memory": "48h", "memory-cap": float("inf")}
    path.write_text(json.dumps({"metric-store": store}))
    with pytest.raises(ConfigurationError, match="infinity"):
        read_settings(str(path))
