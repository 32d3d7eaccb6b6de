"""Installation of the project's documents with valid links.

documents.py SOURCE ROOT HOME

copies the Markdown files of a source tree to ROOT/HOME, with their paths in the source tree. Links
to modules and examples are changed to their installed paths.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

ROOMS = ("agents", "stores", "transports", "controls", "exporter", "machines", "views")
"""Folders of modules beside src/ccagent."""

FOLDERS = (*ROOMS, "packaging", "src/ccagent", "benchmarks")
"""Folders of documents that packages install. Tests are not installed."""

INSTALLED = {
    "packaging/examples": "/usr/share/ccagent/examples",
    "src/ccagent": "/usr/lib/ccagent/ccagent",
    **{room: f"/usr/lib/ccagent/ccagent/{room}" for room in ROOMS},
    "packaging/tree/ccagent-core": "",
    "packaging/ansible": "/usr/share/ccagent/ansible",
    "packaging/venv": "/usr/share/ccagent/venv",
}
"""Installed paths of files that are not documents, by folder of the source tree."""

_LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")


def documents(source: Path) -> list[str]:
    """Return the documents of a source tree."""
    found = [path for folder in FOLDERS for path in (source / folder).rglob("*.md")]
    return sorted(
        [path.relative_to(source).as_posix() for path in found if not path.is_symlink()]
        + ["README.md", "CHANGELOG.md"]
    )


def pictures(source: Path) -> list[str]:
    """Return the pictures in documents of a source tree."""
    found = [path for folder in FOLDERS for path in (source / folder).rglob("pictures/*.png")]
    return sorted(path.relative_to(source).as_posix() for path in found)


def installed(document: str, text: str, known: set[str], home: str) -> str:
    """Return the text of a document with links for its installed path."""

    def link(match: re.Match[str]) -> str:
        target, anchor = match[1], match[2] or ""
        if "://" in target:
            return match[0]
        path = os.path.normpath(os.path.join(os.path.dirname(document), target))
        if path in known:
            return match[0]
        for folder, place in INSTALLED.items():
            if path == folder or path.startswith(f"{folder}/"):
                there = os.path.join("/", home, os.path.dirname(document))
                return f"]({os.path.relpath(place + path[len(folder) :], there)}{anchor})"
        sys.exit(f"{document}: {target} is not installed")

    return _LINK.sub(link, text)


def main() -> None:
    """Copy the documents. Exit with an error if a link has no target."""
    source, root, home = sys.argv[1:]
    texts, images = documents(Path(source)), pictures(Path(source))
    known = {*texts, *images}
    for name in known:
        content = Path(source, name).read_bytes()
        if name in texts:
            content = installed(name, content.decode(), known, home).encode()
        target = Path(root, home.lstrip("/"), name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


if __name__ == "__main__":
    main()
