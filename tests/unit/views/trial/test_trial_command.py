"""`ccagent try` without its libraries."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec

import pytest
from click.testing import CliRunner

from ccagent.errors import ConfigurationError
from ccagent.views.trial.commands import trial


def test_all_missing_libraries_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec

    def find_ours(name: str) -> ModuleSpec | None:
        return find(name) if name.startswith("ccagent") else None

    monkeypatch.setattr(importlib.util, "find_spec", find_ours)
    failed = CliRunner().invoke(trial).exception
    assert isinstance(failed, ConfigurationError)
    text = str(failed)
    assert "-m pip install numpy orjson httptools cryptography starlette jinja2 uvicorn" in text
