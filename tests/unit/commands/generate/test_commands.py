"""The files that packages get are written where they belong."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccagent.commands.generate.commands import generate
from ccagent.commands.main import cli
from ccagent.errors import ConfigurationError


def test_a_link_in_the_place_of_a_file_is_replaced(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("kept")
    place = tmp_path / "generated"
    place.mkdir()
    (place / "ccagent.toml").symlink_to(other)
    written = generate(cli, str(place))
    assert other.read_text() == "kept"
    assert [Path(path).is_symlink() for path in written] == [False] * 6


def test_a_directory_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "share").write_text("")
    with pytest.raises(ConfigurationError, match="share"):
        generate(cli, str(tmp_path))
