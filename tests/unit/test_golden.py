"""Recorded machines give the envelopes that stand beside them."""

import json

import pytest

from tests.support.golden import CASES, path, produce
from tests.support.recorded import machine_names


@pytest.fixture(autouse=True)
def in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("machine", machine_names())
def test_a_recorded_machine(machine: str, case: str) -> None:
    expected = json.loads(path(machine, case).read_text(encoding="utf-8"))
    assert produce(machine, case) == expected
