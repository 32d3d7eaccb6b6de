"""The version of a source tree, from git's tags and commits.

    version.py [--package] [DIRECTORY]

It prints 1.0.1 at the tag v1.0.1, and 1.0.2.dev3+g0123456789ab three commits later. A tree with
changes that are not committed has a digest of them in its version, so no two contents share one.
--package: with a tilde, as rpm and dpkg sort it: 1.0.2~dev3+g0123456789ab.
"""

from __future__ import annotations

import hashlib
import re
import runpy
import subprocess
import sys
from pathlib import Path

LITERAL = re.compile(r'^__version__ = "(.*)"$', re.MULTILINE)
"""The line of src/ccagent/__init__.py that the build replaces. In a checkout it has the next
release and `.dev0`."""

TAGS = ("--match", "v[0-9]*", "--exclude", "v*[!0-9.]*")
"""Options of git describe: tags of releases."""

_DESCRIBED = re.compile(r"v(\d+)\.(\d+)\.(\d+)(?:-(\d+)-g([0-9a-f]+))?$")
_ABBREVIATED = 12


def version_of(source: Path) -> str:
    """Return the version of a source tree, in the form of PEP 440.

    Without git, or without tags, it is that of the next release with the commit, if it is known.
    """
    found = LITERAL.search((source / "src/ccagent/__init__.py").read_text(encoding="utf-8"))
    if found is None:
        sys.exit(f"{source}/src/ccagent/__init__.py: no line with __version__")
    literal = found[1]
    if not literal.endswith(".dev0"):
        return literal  # written by a build: the source distribution
    coming = literal.removesuffix(".dev0")
    if not (source / ".git").exists():
        archived = (source / "packaging/archived").read_text(encoding="ascii")
        described, _, commit = archived.partition(" ")
        commit = commit.strip()[:_ABBREVIATED]
        return _next(coming, described, 0, commit if "$" not in archived else "")
    described = _git(source, "describe", "--tags", f"--abbrev={_ABBREVIATED}", *TAGS)
    commit = _git(source, "rev-parse", f"--short={_ABBREVIATED}", "HEAD")
    if not commit:  # there is no git
        commit = runpy.run_path(str(source / "src/ccagent/commit.py"))["commit_of"](str(source))
        return _next(coming, "", 0, commit)
    is_shallow = _git(source, "rev-parse", "--is-shallow-repository") == "true"
    count = 0 if is_shallow else int(_git(source, "rev-list", "--count", "HEAD"))
    return _next(coming, described, count, commit, _digest_of_changes(source))


def _next(coming: str, described: str, count: int, commit: str, changes: str = "") -> str:
    """Return the version of a commit after a tag, or after `count` commits without a tag."""
    parts = _DESCRIBED.match(described)
    if parts and not parts[4] and not changes:
        return ".".join(parts.group(1, 2, 3))
    if parts:
        major, minor, patch = (int(part) for part in parts.group(1, 2, 3))
        after = (major, minor, patch + 1)
        count = int(parts[4] or 0)
        if after > tuple(int(part) for part in coming.split(".")):
            coming = ".".join(map(str, after))
    local = ".".join(filter(None, (commit and f"g{commit}", changes and f"d{changes}")))
    return f"{coming}.dev{count}" + (f"+{local}" if local else "")


def _digest_of_changes(source: Path) -> str:
    """Return a digest of what is not committed and not ignored, or an empty string."""
    status = _git(source, "status", "--porcelain", "-z", "--untracked-files=all")
    if not status:
        return ""
    digest = hashlib.sha256(_git(source, "diff", "--binary", "HEAD").encode())
    for name in _git(source, "ls-files", "--others", "--exclude-standard", "-z").split("\0"):
        path = source / name
        if name and path.is_file():
            digest.update(f"{name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:8]


def _git(source: Path, *arguments: str) -> str:
    """Return the output of git, empty if it fails. Trees of other users are read, too."""
    command = ["git", "-c", "safe.directory=*", "-C", str(source), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        return ""
    return "" if done.returncode else done.stdout.decode("utf-8", "replace").strip()


def main() -> None:
    """Print the version of a source tree, by default of the one that contains this file."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--package"]
    source = Path(arguments[0]) if arguments else Path(__file__).parent.parent
    version = version_of(source)
    print(version.replace(".dev", "~dev") if "--package" in sys.argv else version)  # noqa: T201


if __name__ == "__main__":
    main()
