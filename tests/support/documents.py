"""The project's own documents: their code blocks and links."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

_FENCE = re.compile(r"^```(\w*) ?(.*)\n((?:.*\n)*?)```$", re.MULTILINE)
_INDENTED = re.compile(r"^\n((?: {4}.*\n)+)", re.MULTILINE)
_TABLE = re.compile(r"\[+[a-z]")
_LINK = re.compile(r"\]\(([^)\s]+)\)")


class Block(NamedTuple):
    """A code block: kind and name are the words behind its fence, which no reader sees."""

    kind: str
    name: str
    text: str

    @property
    def commands(self) -> list[str]:
        """The lines of a block `sh`, without comments."""
        if self.kind != "sh":
            return []
        lines = [re.sub(r"\s+# .*", "", line).strip() for line in self.text.splitlines()]
        return [line for line in lines if line]


def documents() -> list[Path]:
    """All Markdown files that are the project's."""
    folders = (
        "agents",
        "controls",
        "exporter",
        "stores",
        "transports",
        "packaging",
        "src",
        "benchmarks",
        "tests",
        "views",
    )
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.md")]
    return sorted([*found, ROOT / "README.md", ROOT / "CHANGELOG.md"])


def blocks(path: Path) -> Iterator[Block]:
    """Yield the fenced blocks."""
    for kind, name, text in _FENCE.findall(path.read_text()):
        yield Block(kind, name, text)


def configurations(path: Path) -> Iterator[str]:
    """Yield the TOML of fenced blocks, and of indented ones that begin with a table."""
    text = path.read_text()
    yield from (block.text for block in blocks(path) if block.kind == "toml")
    for indented in _INDENTED.findall(_FENCE.sub("", text)):
        if _TABLE.match(indented.strip()):
            yield re.sub(r"^ {4}", "", indented, flags=re.MULTILINE)


def links(path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files, and the anchors in them, that a document refers to."""
    for link in _LINK.findall(_FENCE.sub("", path.read_text())):
        if "://" not in link:
            file, _, anchor = link.partition("#")
            yield (path.parent / file if file else path), anchor


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as forges make them."""
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", path.read_text()), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).strip().replace(" ", "-")
        for heading in headings
    }
