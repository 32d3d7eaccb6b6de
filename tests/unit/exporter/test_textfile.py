"""The file for node_exporter's textfile collector."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccagent.errors import ConfigurationError, TransportError
from ccagent.exporter.exposition import SampleEncoder, gauge, join_text
from ccagent.exporter.settings import ExporterSettings
from ccagent.exporter.sources import NodeSources
from ccagent.exporter.textfile import TextfileCollector, write_textfile
from ccagent.machine.node import Node

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


def test_bytes_that_are_no_text_cost_a_file_only_in_a_sample(tmp_path: Path) -> None:
    """As for node_exporter: a HELP in Latin-1 cost all families of its file."""
    (tmp_path / "help.prom").write_bytes(b"# K\xe4lte\n# HELP a K\xe4lte\na 1\n")
    (tmp_path / "label.prom").write_bytes(b'b{c="K\xe4lte"} 1\n')
    settings = ExporterSettings(textfile_directory=str(tmp_path))
    collector = TextfileCollector(settings, NodeSources(settings))
    found = join_text(SampleEncoder().encode(collector.collect(Node()))).decode()
    assert "# HELP a K\ufffdlte\n# TYPE a untyped\na 1\n" in found
    assert "node_textfile_scrape_error 1\n" in found
    assert "\nb{" not in found
