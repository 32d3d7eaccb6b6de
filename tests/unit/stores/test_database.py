"""What the database's URL and errors mean."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from psycopg import errors

from ccagent.errors import ConfigurationError
from ccagent.stores.database import (
    describe_database,
    is_transient,
    make_database_conninfo,
)


def test_a_place_shows_no_password(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.touch(mode=0o600)
    secret.write_text("geheim\n")
    made = make_database_conninfo("postgresql://ada@db:5433/jobstats", str(secret))
    assert "geheim" in made
    assert describe_database(made) == "jobstats at db:5433"


def test_a_bad_url_is_not_repeated() -> None:
    with pytest.raises(ConfigurationError) as caught:
        make_database_conninfo("postgresql://ada:geheim@db/x?nonsense=1")
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (psycopg.OperationalError("gone"), True), (errors.DiskFull(), True),
        (errors.AdminShutdown(), True), (errors.DeadlockDetected(), True),
        (errors.ReadOnlySqlTransaction(), True), (errors.CannotConnectNow(), True),
        (errors.NumericValueOutOfRange(), False), (errors.UndefinedTable(), False),
    ],
)  # fmt: skip
def test_errors_that_pass(error: psycopg.Error, passes: bool) -> None:
    assert is_transient(error) == passes
