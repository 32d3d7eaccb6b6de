"""The file for node_exporter's textfile collector."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccagent.errors import ConfigurationError, TransportError
from ccagent.exporter.family import gauge
from ccagent.exporter.textfile import write_textfile

BLOCKS = [(gauge("ccagent_a", "x"), "ccagent_a 1\n")]


def test_a_file_is_replaced_whole_and_a_link_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("x")
    directory = tmp_path / "textfile"
    directory.mkdir()
    (directory / "ccagent.prom").symlink_to(precious)
    write_textfile(str(directory), BLOCKS)
    assert precious.read_text() == "x"
    assert [path.name for path in directory.iterdir()] == ["ccagent.prom"]
    assert (directory / "ccagent.prom").read_text().endswith("ccagent_a 1\n")


def test_a_directory_that_is_none_is_an_error_of_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such directory"):
        write_textfile(str(tmp_path / "none"), BLOCKS)


def test_an_empty_file_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nothing to write"):
        write_textfile(str(tmp_path), [])
    assert not [*tmp_path.iterdir()]


def test_a_place_that_cannot_be_written_is_named() -> None:
    with pytest.raises(TransportError, match=r"/proc/ccagent\.prom: not written"):
        write_textfile("/proc", BLOCKS)
