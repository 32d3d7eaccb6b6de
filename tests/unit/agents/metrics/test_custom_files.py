"""Metrics in files: whose they must be, how old they may be, what others could do to them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from ccagent.agents.metrics.custom import CustomMetrics, FilesReader
from ccagent.agents.metrics.readers.base import Gauge
from ccagent.agents.metrics.settings import FileSettings
from ccagent.config.duration import Duration
from ccagent.errors import NotHereError, NotPermittedError, UnparsableError
from tests.support.running import until
from tests.support.tree import TreeNode

NOBODY = 65534


class Site:
    """A node with a directory /site for files of metrics."""

    def __init__(self, root: Path) -> None:
        self.node = TreeNode(root)
        self.directory = root / "site"
        self.directory.mkdir()
        self.now = self.node.clock.time()

    def write(self, name: str, text: str, age: float = 0) -> Path:
        path = self.directory / name
        path.write_text(text)
        os.utime(path, (self.now - age, self.now - age))
        return path

    def reader(self, path: str, max_age: str = "5m") -> FilesReader:
        table = FileSettings(path=path, max_age=Duration(max_age))
        return FilesReader({"site": table}, CustomMetrics(()))

    def read(self, path: str = "/site") -> tuple[list[Gauge], list[str]]:
        """Read once; give values and errors."""
        reader = self.reader(path)
        return reader.read(self.node), reader.errors


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_file_tells_with_every_sample(site: Site) -> None:
    site.write("x.prom", "jobs value=3\n")
    reader = site.reader("/site/x.prom")
    assert reader.read(site.node) == reader.read(site.node) == [Gauge("jobs", 3.0)]
    site.write("x.prom", "jobs value=4\n")
    assert reader.read(site.node) == [Gauge("jobs", 4.0)]
    site.write("x.prom", "")
    assert reader.read(site.node) == []
    assert reader.errors == []


def test_a_directory_is_its_files_lp(site: Site) -> None:
    site.write("b.lp", "b value=2\n")
    site.write("a.lp", "a value=1\n")
    for name in (".a.lp", "a.lp.new", "notes"):
        site.write(name, "c value=3\n")
    assert site.read() == ([Gauge("a", 1.0), Gauge("b", 2.0)], [])


def test_what_is_old_is_not_sent_and_that_is_said(site: Site) -> None:
    site.write("a.lp", "a value=1\n", age=299)
    site.write("b.lp", "b value=1\n", age=301)
    site.write("c.lp", "c value=1\n", age=-301)
    assert site.read() == (
        [Gauge("a", 1.0)],
        [
            "file site: /site/b.lp: written 301 s ago, which is over 5m",
            "file site: /site/c.lp: written 301 s in the future",
        ],
    )


def test_what_is_half_written_is_not_sent(site: Site) -> None:
    site.write("a.lp", "a value=12\nb value=12")
    gauges, (error,) = site.read()
    assert gauges == []
    assert error == "file site: /site/a.lp: its last line has no end; is it being written?"


def test_bad_lines_are_said(site: Site) -> None:
    site.write("a.lp", "a value=1\nb\n")
    gauges, (error,) = site.read("/site/a.lp")
    assert gauges == [Gauge("a", 1.0)]
    assert error.startswith("file site: line 2, column 2: expected")


def test_what_is_missing_is_said(site: Site) -> None:
    assert site.read("/none") == ([], ["file site: /none: No such file or directory"])


def test_a_file_belongs_to_root_or_the_agent(site: Site) -> None:
    path = site.write("a.lp", "a value=1\n")
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(path, NOBODY, -1)
    assert site.read() == (
        [],
        [f"file site: /site/a.lp: belongs to user {NOBODY}, not to root or ccagent"],
    )


def test_a_file_is_not_everybodys_to_write(site: Site) -> None:
    path = site.write("a.lp", "a value=1\n")
    path.chmod(0o646)
    with pytest.raises(NotPermittedError, match="/site/a.lp: every user may write it"):
        site.node.read_trusted("site/a.lp", 100)
    path.chmod(0o664)
    assert site.read()[0] == [Gauge("a", 1.0)]


def test_no_link_is_followed(site: Site) -> None:
    secret = site.write("secret", "a value=1\n")
    (site.directory / "a.lp").symlink_to(secret)
    (site.directory / "b.lp").symlink_to("/nowhere")
    assert site.read() == (
        [],
        [
            "file site: /site/a.lp: a symbolic link is not followed",
            "file site: /site/b.lp: a symbolic link is not followed",
        ],
    )


def test_another_name_of_a_file_is_not_read(site: Site) -> None:
    os.link(site.write("secret", "a value=1\n"), site.directory / "a.lp")
    assert site.read() == ([], ["file site: /site/a.lp: a file with several names"])


def test_a_pipe_a_directory_and_a_device_are_not_read_nor_waited_for(site: Site) -> None:
    os.mkfifo(site.directory / "a.lp")
    (site.directory / "b.lp").mkdir()
    assert site.read() == (
        [],
        [f"file site: /site/{name}.lp: not a regular file" for name in "ab"],
    )
    with pytest.raises(NotPermittedError, match="/dev/zero: not a regular file"):
        TreeNode.read_trusted(site.node, "../" * 40 + "dev/zero", 10)


def test_a_file_is_bounded(site: Site) -> None:
    site.write("a.lp", "a value=1\n" + "#" * 2**20 + "\n")
    site.write("b.lp", "b value=1\n")
    assert site.read() == (
        [Gauge("b", 1.0)],
        ["file site: /site/a.lp: larger than 1048576 bytes"],
    )


def test_a_directory_is_bounded_as_well(site: Site) -> None:
    for number in range(3):
        site.write(f"{number}.lp", f"m{number} value=1\n" + "#" * 500_000 + "\n")
    gauges, (error,) = site.read()
    assert [gauge.metric for gauge in gauges] == ["m0", "m1"]
    assert error.startswith("file site: /site/2.lp: larger than 48")


def test_files_are_counted(site: Site) -> None:
    for number in range(300):
        site.write(f"{number:03}.lp", f"m{number} value=1\n")
    gauges, errors = site.read()
    assert len(gauges) == 256
    assert errors == ["file site: more than 256 files: the rest is skipped"]


def test_a_trusted_file_has_a_time_and_a_content(site: Site) -> None:
    site.write("a.lp", "a value=1\n", age=7)
    assert site.node.read_trusted("site/a.lp", 10) == (site.now - 7, b"a value=1\n")
    with pytest.raises(UnparsableError, match="larger than 9 bytes"):
        site.node.read_trusted("site/a.lp", 9)
    with pytest.raises(NotHereError):
        site.node.read_trusted("site/b.lp", 9)


class HangingNode(TreeNode):
    """A node on which one directory hangs until it is let go."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.release = threading.Event()
        self.asked = 0

    def list(self, path: str) -> list[str]:
        if path == "hanging":
            self.asked += 1
            self.release.wait()
            return []
        return super().list(path)


@pytest.mark.slow
def test_one_that_hangs_stalls_the_others_once(site: Site, tmp_path: Path) -> None:
    site.write("a.lp", "a value=1\n")
    node = HangingNode(tmp_path)
    tables = {"stuck": FileSettings(path="/hanging"), "site": FileSettings(path="/site/a.lp")}
    reader = FilesReader(tables, CustomMetrics(()))
    try:
        for _ in range(3):
            assert reader.read(node) == [Gauge("a", 1.0)]
            assert reader.errors == ["file stuck: hangs; skipped until it answers"]
        assert node.asked == 1
    finally:
        node.release.set()
    until(lambda: reader.read(node) == [Gauge("a", 1.0)] and not reader.errors)
    until(lambda: reader.read(node) == [Gauge("a", 1.0)] and node.asked >= 2)
