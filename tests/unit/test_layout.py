"""The layout of the project: what the tools must be told of it."""

from __future__ import annotations

import tomllib

from tests.support.paths import ROOT


def test_pyright_checks_every_package() -> None:
    include = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pyright"]["include"]
    links = [path for path in (ROOT / "src/ccagent").iterdir() if path.is_symlink()]
    rooms = [
        path.parent for path in (ROOT / "src/ccagent").glob("*/__init__.py")
        if not path.parent.is_symlink()
    ]  # fmt: skip
    wanted = [path.resolve() for path in links] + rooms
    assert {path.relative_to(ROOT).as_posix() for path in wanted} <= set(include)
