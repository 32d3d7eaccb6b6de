"""Download of the wheels for the packages, and their unpacking into one tree.

    vendor.py fetch DIRECTORY                 download missing wheels of wheels.txt
    vendor.py unpack DIRECTORY TREE           unpack it, for all versions of Python, side by side
    vendor.py build DIRECTORY TREE SOURCE     build the wheel of a source tree and unpack it, too
    vendor.py list DIRECTORY                  print the wheels that a build needs

`--list wheels-store.txt` is for the package ccagent-store, wheels-web.txt for ccagent-web.

One tree is for all versions of Python: extension modules have version and machine in their names.
All other files are identical in each wheel of a version; this is checked.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

MINORS = (11, 12, 13)
"""Minor versions of CPython 3."""

GLIBC = (28, 17)
"""Accepted platforms. EL 8 has glibc 2.28."""

LIST = Path(__file__).parent / "wheels.txt"
BUILDER = "setuptools"
LEFT_OUT = {"RECORD", "WHEEL", "INSTALLER", "REQUESTED", "top_level.txt", "direct_url.json"}
"""Files in *.dist-info that describe the wheel, not its content."""

STRAY = {"example.py"}
"""Files in wheels that are not modules."""

UNUSED = re.compile(r"/(tests|include|pkgconfig)/|_tests\.cpython|\.(a|c|h|pxd|pyi|pyx)$")
"""Files of large wheels that no program uses. ccagent's tree keeps such files."""

ONLY = {"bokeh": re.compile(r"/static/js/bokeh(-api)?\.min\.js$")}
"""Files of wheels of which the rest is not used, but for their licences."""

COMPILED = tuple(
    f"ccagent/stores/metrics/{name}.abi3.so" for name in ("line_scanner", "largest_triangles")
)
"""ccagent's own compiled modules, a file each for all versions of Python."""

FLAGS = {
    "CFLAGS": "-fstack-protector-strong -D_FORTIFY_SOURCE=2",
    "LDFLAGS": "-Wl,-z,relro,-z,now -Wl,--build-id=none",
}
"""Options of the compiler. Those of the building Python contain its paths."""

INFORMATIVE = {"numpy/__config__.py"}
"""Files that differ between wheels: compiler options, for bug reports."""


class Pinned(NamedTuple):
    """A line of wheels.txt."""

    name: str
    version: str
    hashes: frozenset[str]

    def is_in(self, wheel: str) -> bool:
        """Return whether a file name is a wheel of exactly this version."""
        name, version, *_ = wheel.split("-")
        return (name.replace("_", "-").lower(), version) == (self.name, self.version)


def pinned(text: str) -> list[Pinned]:
    """Return the entries of wheels.txt: `name==version --hash=sha256:... `, continued lines."""
    lines = re.sub(r"#.*", "", text).replace("\\\n", " ").splitlines()
    found: list[Pinned] = []
    for line in filter(str.strip, lines):
        requirement, *options = line.split()
        name, _, version = requirement.partition("==")
        hashes = frozenset(option.removeprefix("--hash=sha256:") for option in options)
        found.append(Pinned(name, version, hashes))
    return found


def fits(wheel: str, minor: int, arch: str) -> bool:
    """Return whether a wheel's name is for CPython 3.`minor` on `arch`."""
    *_, python, abi, machine = wheel.removesuffix(".whl").split("-")
    if machine == "any":
        return "py3" in python.split(".")
    stable = abi == "abi3" and int(python.removeprefix("cp3")) <= minor
    return (stable or abi == f"cp3{minor}") and f"_{arch}" in machine


def chosen(directory: Path, arch: str, wanted: Path = LIST) -> list[Path]:
    """Choose a wheel for each line of a list and each Python. Raise SystemExit."""
    names = sorted(path.name for path in directory.glob("*.whl"))
    wheels: dict[str, None] = {}
    for each in pinned(wanted.read_text()):
        for minor in MINORS:
            fitting = [name for name in names if each.is_in(name) and fits(name, minor, arch)]
            if not fitting:
                sys.exit(f"{directory}: no wheel of {each.name} {each.version}, 3.{minor}, {arch}")
            found = hashlib.sha256((directory / fitting[0]).read_bytes()).hexdigest()
            if found not in each.hashes:
                sys.exit(f"{fitting[0]}: its sha256 is {found}, which {wanted.name} hasn't")
            wheels[fitting[0]] = None
    return [directory / name for name in wheels]


def fetch(directory: Path, arch: str, listed: Path = LIST) -> None:
    """Download missing wheels, each file once. pip also checks the hashes."""
    directory.mkdir(parents=True, exist_ok=True)
    names = [path.name for path in directory.glob("*.whl")]
    wanted = pinned(listed.read_text())
    for minor in MINORS:
        if all(any(p.is_in(n) and fits(n, minor, arch) for n in names) for p in wanted):
            continue
        platforms = [f"--platform=manylinux_2_{glibc}_{arch}" for glibc in GLIBC]
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
             "--no-deps", "--only-binary=:all:", "--require-hashes", "--implementation=cp",
             f"--python-version=3.{minor}", f"--platform=manylinux2014_{arch}", *platforms,
             f"--dest={directory}", f"--requirement={listed}"],
            check=True,
        )  # fmt: skip


def unpack(wheel: Path, tree: Path, *, is_lean: bool = False) -> None:
    """Unpack a wheel. Existing files must be identical. is_lean: omit unused files."""
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            *folders, name = entry.filename.split("/")
            about = folders and folders[0].endswith(".dist-info")
            if not name or (about and name in LEFT_OUT) or entry.filename in STRAY:
                continue
            wanted = ONLY.get(wheel.name.partition("-")[0])
            if not about and wanted and not wanted.search(entry.filename):
                continue
            if is_lean and not about and UNUSED.search(entry.filename):
                continue
            if ".." in folders or folders[:1] == [""] or ".data" in (folders or [""])[0]:
                sys.exit(f"{wheel.name}: {entry.filename}: does not belong into a tree of modules")
            content = archive.read(entry)
            if name.endswith(".py") and content.startswith(b"#!"):
                content = b"#" + content[content.index(b"\n") :]  # a module, not a program
            target = tree.joinpath(*folders, name)
            if target.exists() and entry.filename in INFORMATIVE:
                continue
            if target.exists() and target.read_bytes() != content and not about:
                sys.exit(f"{wheel.name}: {entry.filename}: differs from that of another wheel")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            is_module = ".so" in name and ".libs/" not in entry.filename
            target.chmod(0o755 if is_module else 0o644)


def compiler_environment(arch: str) -> dict[str, str]:
    """Return the variables with which setup.py compiles for `arch`, or leaves its module out.

    A given CCAGENT_PURE leaves it out; a given CC is used. Else it is `cc`, for another
    architecture `aarch64-linux-gnu-gcc`.
    """
    is_native = arch == platform.machine()
    compiler = os.environ.get("CC") or ("cc" if is_native else f"{arch}-linux-gnu-gcc")
    if os.environ.get("CCAGENT_PURE") or shutil.which(compiler) is None:
        return {"CCAGENT_PURE": "1"}
    return {**FLAGS, "CC": compiler, "LDSHARED": f"{compiler} -shared"}


def build(directory: Path, tree: Path, source: Path, arch: str) -> None:
    """Build a wheel with only the setuptools of `directory`, and unpack it."""
    with tempfile.TemporaryDirectory() as work:
        for wheel in chosen(directory, arch):
            if wheel.name.startswith(BUILDER):
                unpack(wheel, Path(work, "tools"))
        program = (
            "import os, sys; sys.path.insert(0, sys.argv[1]); os.chdir(sys.argv[2]); "
            "from setuptools.build_meta import build_wheel; build_wheel(sys.argv[3])"
        )
        built = Path(work, "built")
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-B", "-c", program, f"{work}/tools", source, built],
            env={**os.environ, **compiler_environment(arch)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"{source}: {done.stdout}{done.stderr}")
        for wheel in built.glob("*.whl"):
            unpack(wheel, tree)
    if not all((tree / name).exists() for name in COMPILED) and not os.environ.get("CCAGENT_PURE"):
        sys.stderr.write(
            "packaging/build: ccagent-store without its compiled modules, which need a C compiler "
            f"for {arch} and Python's headers: lines take about 6 times the CPU\n"
        )


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["fetch", "unpack", "build", "list"])
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH")
    parser.add_argument("--arch", default=platform.machine())
    parser.add_argument("--list", type=Path, default=LIST)
    options = parser.parse_args()
    directory, *others = options.paths
    wanted = LIST.with_name(options.list.name)
    if options.action == "fetch":
        fetch(directory, options.arch, wanted)
        chosen(directory, options.arch, wanted)
    elif options.action == "list":
        print(*chosen(directory, options.arch, wanted), sep="\n")  # noqa: T201 - a script reads it
    elif options.action == "build":
        tree, source = others
        build(directory, tree, source, options.arch)
    else:
        for wheel in chosen(directory, options.arch, wanted):
            if not wheel.name.startswith(BUILDER):
                unpack(wheel, others[0], is_lean=wanted != LIST)


if __name__ == "__main__":
    main()
