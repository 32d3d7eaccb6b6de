"""`ccagent demo` without its libraries."""

from __future__ import annotations

import importlib.util

import pytest
from click.testing import CliRunner

from ccagent.errors import ConfigurationError
from ccagent.views.demo.commands import demo


def test_all_missing_libraries_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_none(_: str) -> None:
        return None

    monkeypatch.setattr(importlib.util, "find_spec", find_none)
    failed = CliRunner().invoke(demo).exception
    assert isinstance(failed, ConfigurationError)
    text = str(failed)
    assert "-m pip install numpy orjson httptools cryptography starlette jinja2 uvicorn" in text
