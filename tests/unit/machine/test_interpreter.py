"""The command that installs a library where the running ccagent finds it."""

from __future__ import annotations

import sys

import pytest

from ccagent.machine import interpreter
from ccagent.machine.interpreter import install_command


def test_a_library_goes_to_the_python_that_runs_ccagent() -> None:
    assert install_command("nkeys") == f"{sys.executable} -m pip install nkeys"


def test_a_library_for_the_packaged_program_goes_to_its_own_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(interpreter, "__file__", "/usr/lib/ccagent/ccagent/machine/interpreter.py")
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3.12")
    assert install_command("nkeys") == (
        "/usr/bin/python3.12 -m pip install --target /usr/local/lib/ccagent nkeys"
    )
