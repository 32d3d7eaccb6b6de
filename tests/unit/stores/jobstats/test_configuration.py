"""The store's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ccagent.errors import ConfigurationError
from ccagent.stores.jobstats.settings import read_jobstats_settings


def test_the_command_line_replaces_the_file(tmp_path: Path) -> None:
    path = tmp_path / "store.toml"
    path.write_text('data = "/var/lib/x"\n[series]\nretention = "30d"\n')
    found = read_jobstats_settings(str(path), {"listen": "0.0.0.0:1"})
    assert (found.data, found.listen, found.series.retention.seconds) == (
        "/var/lib/x", "0.0.0.0:1", 30 * 86400,
    )  # fmt: skip
    other = read_jobstats_settings(str(path), {"database": "postgresql://x/y"})
    assert (other.data, other.database) == ("", "postgresql://x/y")


@pytest.mark.parametrize(
    ("text", "changes", "reason"),
    [
        ("", {}, "data, database: exactly one is required"),
        ("", {"data": "x", "database": "postgresql://x"}, "exactly one is required"),
        ("", {"database": "mysql://x"}, "database: expected postgresql://USER@HOST/NAME"),
        ('data = "x"\nport = 1\n', {}, "port"),
        ('data = "x"\nformats = ["%z"]\n', {}, "formats: '%z': %z is none of"),
        (
            'data = "x"\n[series]\npartition = "90s"\n',
            {},
            "series.partition: expected whole minutes",
        ),
        ('data = "x"\n[series]\nretention = "1h"\n', {}, "series.retention: expected at least one"),
        ('data = "x"\n[series]\npartition = "1m"\n', {}, "series.partition: too short"),
        ('data = "x"\n[series]\nretention = "40000d"\n', {}, "series.retention: at most 36500d"),
        ('data = "x"\n[limits]\nfuture = "40000d"\n', {}, "limits.future: at most 36500d"),
        ('data = "x"\n[limits]\nbody = "8"\n', {}, "limits.body: '8' is not a size"),
        ('data = "x"\n[tls]\nkey = "k"\n', {}, "tls: certificate and key must be given together"),
        ("data = [", {}, "store.toml"),
        (f"data = {'9' * 5000}", {}, "store.toml"),
        ('data = "x"\nlisten = "here"\n', {}, "listen: 'here' is not ADDRESS:PORT"),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, text: str, changes: dict[str, Any], reason: str
) -> None:
    path = tmp_path / "store.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        read_jobstats_settings(str(path), changes)
    assert reason in str(caught.value)
