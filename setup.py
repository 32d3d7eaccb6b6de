"""Build steps that pyproject.toml can't express: the package's commit, and its extension module."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

_HERE = Path(__file__).parent
_COMMIT = runpy.run_path(str(_HERE / "src/ccagent/commit.py"))


def _write_commit(package: Path) -> None:
    """Write the commit of this working tree, if it has one, into a copy of the package."""
    commit: str = _COMMIT["commit_of"](str(_HERE))
    if commit:
        (package / _COMMIT["FILE"]).write_text(f"{commit}\n", encoding="ascii")


class BuildWithCommit(build_py):
    """Builds the package. An editable package reads the commit from its checkout."""

    def run(self) -> None:
        """Build, and add the commit."""
        super().run()
        if not self.editable_mode:
            _write_commit(Path(self.build_lib) / "ccagent")


class SdistWithCommit(sdist):
    """Makes a source distribution that contains its commit."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Copy the files, and add the commit."""
        super().make_release_tree(base_dir, files)
        _write_commit(Path(base_dir) / "src/ccagent")


# One module for all versions of Python. Without a compiler, or with CCAGENT_PURE, the store uses
# Python code instead. No debugging information: it has the path of the build.
_SCANNER = Extension(
    "ccagent.stores.metrics.line_scanner",
    ["stores/metrics/line_scanner.c"],
    extra_compile_args=["-std=c11", "-O2", "-g0"],
    extra_link_args=["-s"],
    py_limited_api=True,
    optional=True,
)

setup(
    cmdclass={"build_py": BuildWithCommit, "sdist": SdistWithCommit},
    ext_modules=[] if os.environ.get("CCAGENT_PURE") else [_SCANNER],
    options={} if os.environ.get("CCAGENT_PURE") else {"bdist_wheel": {"py_limited_api": "cp311"}},
)
