"""Build steps that pyproject.toml can't express: the version, and the extension modules."""

from __future__ import annotations

import os
import runpy
import shutil
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

_HERE = Path(__file__).parent
_MODULE = runpy.run_path(str(_HERE / "packaging/version.py"))
_VERSION: str = _MODULE["version_of"](_HERE)


def _write_version(package: Path) -> None:
    """Write the version into a copy of the package. The copy may be a link to the source."""
    path = package / "__init__.py"
    text = _MODULE["LITERAL"].sub(f'__version__ = "{_VERSION}"', path.read_text(encoding="utf-8"))
    path.unlink()
    path.write_text(text, encoding="utf-8")


class BuildWithVersion(build_py):
    """Builds the package. An editable package reads the commit from its checkout."""

    def run(self) -> None:
        """Build, and write the version."""
        super().run()
        if not self.editable_mode:
            _write_version(Path(self.build_lib) / "ccagent")


class SdistWithVersion(sdist):
    """Makes a source distribution that contains its version."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Copy the files, with links to the rooms as in a checkout, and write the version."""
        super().make_release_tree(base_dir, files)
        package = Path(base_dir) / "src/ccagent"
        for room in (_HERE / "src/ccagent").iterdir():
            if room.is_symlink():
                shutil.rmtree(package / room.name)
                (package / room.name).symlink_to(room.readlink())
        _write_version(package)


# For all versions of Python. Without a compiler, or with CCAGENT_PURE, the store uses Python code
# instead. No debugging information: it has the path of the build. No contraction: numbers are
# rounded as in Python.
_COMPILED = [
    Extension(
        f"ccagent.stores.metrics.{name}",
        [f"stores/metrics/{name}.c"],
        extra_compile_args=["-std=c11", "-O2", "-g0", "-ffp-contract=off"],
        extra_link_args=["-s"],
        py_limited_api=True,
        optional=True,
    )
    for name in ("line_scanner", "largest_triangles")
]

setup(
    version=_VERSION,
    cmdclass={"build_py": BuildWithVersion, "sdist": SdistWithVersion},
    ext_modules=[] if os.environ.get("CCAGENT_PURE") else _COMPILED,
    options={} if os.environ.get("CCAGENT_PURE") else {"bdist_wheel": {"py_limited_api": "cp311"}},
)
