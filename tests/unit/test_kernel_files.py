"""Each file of /proc, /sys and a control group has one parser, whoever reads the file."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import pytest

from ccagent.machine.cgroup.jobs import ROOT
from ccagent.machine.descriptors import KeptFiles
from ccagent.machine.node import LARGEST_FILE, Node
from tests.machines.metrics import MACHINES
from tests.machines.metrics.machine import lines
from tests.support.golden import CASES, produce
from tests.support.recorded import machine_names
from tests.unit.exporter.test_damaged_machine import node, read_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import FrameType

    from tests.support.tree import TreeNode

__all__ = ["node"]

METHODS = (
    "__getitem__", "__iter__", "decode", "find", "index", "partition", "rfind", "rpartition",
    "rsplit", "split", "splitlines", "startswith", "strip",
)  # fmt: skip

TEXTS = {
    "ccagent.agents.metrics.readers.hwmon._text", "ccagent.exporter.collector.read_text",
}  # fmt: skip
"""Functions that return a line as it is."""

SEVERAL = {
    # Each finds one line of 60, for every process.
    "proc/N/status": {
        "ccagent.agents.sonar.jobs.attribution.is_in_nested_pids",
        "ccagent.machine.cgroup.jobs.is_all_root",
    },
}


class WatchedContent(bytes):
    """Content of a file that notes which functions take it apart, and which pass it on."""

    parsers: set[str]
    passers: set[str]


def name_of(frame: FrameType) -> str:
    function = frame.f_code.co_qualname.partition(".<locals>")[0]
    return f"{frame.f_globals.get('__name__')}.{function}"


def watch(name: str) -> Callable[..., Any]:
    """Return a method of bytes that notes the function that calls it."""
    original = getattr(bytes, name)

    def call(self: WatchedContent, *arguments: Any) -> Any:
        self.parsers.add(name_of(sys._getframe(1)))
        return original(self, *arguments)

    return call


for method in METHODS:
    setattr(WatchedContent, method, watch(method))


def given(frame: FrameType | None) -> WatchedContent | None:
    """Return the content among the arguments of a function."""
    if frame is None:
        return None
    names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
    found = (frame.f_locals.get(name) for name in names)
    return next((one for one in found if isinstance(one, WatchedContent)), None)


def note_receiver(frame: FrameType, event: str, _: object) -> None:
    """Note a function that gets content, and its caller that passed it on.

    A method of WatchedContent does not see a regular expression that searches the content.
    """
    if event == "call" and name_of(frame).startswith("ccagent."):
        content = given(frame)
        if content is not None:
            content.parsers.add(name_of(frame))
            if frame.f_back is not None and given(frame.f_back) is content:
                content.passers.add(name_of(frame.f_back))


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, WatchedContent]:
    """Return content of each file that is read from now on, by path; numbers are N.

    Files of control groups of one name are one: those of a job, a step or a machine.
    """
    found: dict[str, WatchedContent] = {}

    def watched(path: str, content: bytes) -> bytes:
        if path.startswith(f"{ROOT}/"):
            path = f"{ROOT}/*/{path.rpartition('/')[2]}"
        elif not path.startswith(("proc/", "sys/")):
            return content
        watched = WatchedContent(content)
        watched.parsers, watched.passers = set(), set()
        first = found.setdefault(re.sub(r"\d+", "N", path), watched)
        watched.parsers, watched.passers = first.parsers, first.passers
        return watched

    read, read_single, pieces = Node.read, Node.read_single, Node.pieces
    read_kept = KeptFiles.read

    def read_pieces(self: Node, path: str) -> Iterator[bytes]:
        for piece in pieces(self, path):
            yield watched(path, piece)

    def read_whole(self: Node, path: str, limit: int = LARGEST_FILE) -> bytes:
        return watched(path, read(self, path, limit))

    def read_once(self: Node, path: str) -> bytes:
        return watched(path, read_single(self, path))

    def read_open(self: KeptFiles, path: str, limit: int = LARGEST_FILE) -> bytes:
        return watched(path, read_kept(self, path, limit))

    for name in ("read", "read_single"):
        monkeypatch.setattr(KeptFiles, name, read_open)
    monkeypatch.setattr(Node, "read", read_whole)
    monkeypatch.setattr(Node, "read_single", read_once)
    monkeypatch.setattr(Node, "pieces", read_pieces)
    return found


@pytest.mark.slow
def test_a_file_of_the_kernel_has_one_parser(
    files: dict[str, WatchedContent], node: TreeNode, tmp_path: Path
) -> None:
    sys.setprofile(note_receiver)
    try:
        read_all(node)
        for name, hardware in MACHINES.items():
            lines(hardware, tmp_path / name)
        for machine in machine_names():
            for case in CASES:
                produce(machine, case)
    finally:
        sys.setprofile(None)
    parsers = {path: each.parsers - each.passers - TEXTS for path, each in files.items()}
    assert len([*filter(None, parsers.values())]) > 30
    assert {path: names for path, names in parsers.items() if len(names) > 1} == SEVERAL
