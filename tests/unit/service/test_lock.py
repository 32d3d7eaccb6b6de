"""Locks of services in their directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccagent.errors import ConfigurationError
from ccagent.service.lock import lock_directory


def test_a_directory_that_cant_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    directory = str(tmp_path / "file/state")
    with pytest.raises(ConfigurationError) as raised:
        lock_directory(directory, "lock", "controls.state-directory")
    assert str(raised.value) == f"controls.state-directory: {directory}: Not a directory"
