"""Files that scripts write: what is exposed, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ccagent.exporter.collector import Collector
from ccagent.exporter.exposition import join_text
from ccagent.exporter.node_exporter import textfiles
from ccagent.exporter.node_exporter.textfiles import TextfileCollector
from ccagent.exporter.scraping import Scraper
from ccagent.machine.node import Node
from tests.support.exposition import values
from tests.support.scraped import collected, make

ERROR = "node_textfile_scrape_error"


@pytest.fixture
def node() -> Node:
    return Node(hostname="n", cluster="c")


@pytest.fixture
def collector(tmp_path: Path) -> Collector:
    return make(TextfileCollector, textfile_directory=str(tmp_path))


def names(found: dict[str, float]) -> set[str]:
    return {name for name in found if not name.startswith("node_textfile_mtime")}


def test_files_of_a_directory(collector: Collector, node: Node, tmp_path: Path) -> None:
    (tmp_path / "a.prom").write_text('# TYPE mine gauge\nmine{n="a"} 1\n')
    (tmp_path / "b.prom").write_text('# TYPE mine gauge\nmine{n="b"} 2\nother_total 3\n')
    (tmp_path / "ccagent.prom").write_text("own 1\n")
    (tmp_path / "c.txt").write_text("no 1\n")
    os.utime(tmp_path / "a.prom", (5, 5))
    found = collected(collector, node)
    assert names(found) == {ERROR, 'mine{n="a"}', 'mine{n="b"}', "other_total"}
    assert found[f'node_textfile_mtime_seconds{{file="{tmp_path}/a.prom"}}'] == 5
    assert found[ERROR] == 0
    (tmp_path / "a.prom").write_text('# TYPE mine gauge\nmine{n="a"} 10\n')
    (tmp_path / "b.prom").unlink()
    found = collected(collector, node)
    assert (names(found), found['mine{n="a"}']) == ({ERROR, 'mine{n="a"}'}, 10)


def test_a_file_that_is_refused_costs_itself(
    collector: Collector, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(textfiles, "_LARGEST", 50)
    (tmp_path / "good.prom").write_text('# TYPE mine gauge\nmine{n="a"} 1\n')
    assert collected(collector, node)[ERROR] == 0
    (tmp_path / "secret").write_text("secret 1\n")
    for number, content in enumerate(
        ("broken", "stamp 1 2\n", "x" * 60, "mine 3\n", '# TYPE mine gauge\nmine{n="a"} 2\n')
    ):
        (tmp_path / f"h{number}.prom").write_text(content)
    (tmp_path / "latin.prom").write_bytes(b'a{b="\xff"} 1\n')
    (tmp_path / "link.prom").symlink_to(tmp_path / "secret")
    (tmp_path / "open.prom").write_text("open 1\n")
    (tmp_path / "open.prom").chmod(0o666)
    (tmp_path / "directory.prom").mkdir()
    os.mkfifo(tmp_path / "pipe.prom")
    for path in {*tmp_path.glob("*.prom")} - {tmp_path / "good.prom"}:
        found = collected(collector, node)
        assert (names(found), found[ERROR]) == ({ERROR, 'mine{n="a"}'}, 1)
        path.rmdir() if path.is_dir() else path.unlink()
    assert collected(collector, node)[ERROR] == 0


def test_a_file_of_another_user_is_refused(
    collector: Collector, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.prom").write_text("mine 1\n")
    monkeypatch.setattr(textfiles, "list_trusted_users", lambda: {os.geteuid() + 1})
    assert collected(collector, node) == {ERROR: 1}


def test_without_a_directory(node: Node, tmp_path: Path) -> None:
    assert collected(make(TextfileCollector), node) == {ERROR: 0}
    gone = make(TextfileCollector, textfile_directory=str(tmp_path / "gone"))
    assert collected(gone, node) == {ERROR: 1}


def test_families_of_ccagent_itself_count(collector: Collector, node: Node, tmp_path: Path) -> None:
    (tmp_path / "a.prom").write_text(
        "node_textfile_scrape_error 7\nnode_scrape_collector_success 7\nmine 1\n"
    )
    text = join_text(Scraper(node, {"node_exporter": [collector]}).scrape(20.0)).decode()
    found = values(text)
    assert (found[ERROR], found["mine"]) == (0, 1)
    assert text.count("# TYPE node_textfile_scrape_error") == 1
    assert text.count("# TYPE node_scrape_collector_success") == 1
