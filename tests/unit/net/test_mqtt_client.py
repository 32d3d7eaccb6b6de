"""The client of MQTT imports no client of HTTP: modules are loaded at their first use."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from ccagent.net.mqtt_client import defer

if TYPE_CHECKING:
    from pathlib import Path

# paho imports it, and uses it for proxies only.
IMPORTS = """
import sys
import ccagent.net.mqtt_client
import urllib.request
assert "email.message" not in sys.modules
urllib.request.getproxies()
assert "email.message" in sys.modules
"""


def test_a_module_is_loaded_when_a_name_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "deferred_package"
    package.mkdir()
    (package / "__init__.py").write_text("loads = 0\n")
    (package / "part.py").write_text(
        "import deferred_package\ndeferred_package.loads += 1\nVALUE = 7\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    defer("deferred_package.part")
    found = import_module("deferred_package")
    part = import_module("deferred_package.part")
    assert found.loads == 0
    assert part.VALUE == 7
    with pytest.raises(AttributeError):
        _ = part.OTHER
    assert part.VALUE == found.part.VALUE == 7
    defer("deferred_package.part")
    assert found.loads == 1
    assert import_module("deferred_package.part").VALUE == 7


def test_a_client_of_mqtt_needs_no_client_of_http() -> None:
    subprocess.run([sys.executable, "-c", IMPORTS], check=True)
