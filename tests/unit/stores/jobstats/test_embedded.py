"""The embedded PostgreSQL of a running store."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccagent.errors import ConfigurationError
from ccagent.stores.jobstats.embedded import find_running


def test_a_running_database_is_found_where_its_socket_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no PostgreSQL runs in it"):
        find_running(str(tmp_path))
    (tmp_path / "postgres").mkdir()
    # As PostgreSQL 18 writes it. A path that is too long for a socket has it in /tmp.
    state = "4711\n/data/postgres\n1795341595\n5432\n/tmp/ccagent-a1b2\n\n  65538 0\nready   \n"
    (tmp_path / "postgres/postmaster.pid").write_text(state)
    assert find_running(str(tmp_path)) == (
        "postgresql://ccagent@/jobstats?host=%2Ftmp%2Fccagent-a1b2"
    )
