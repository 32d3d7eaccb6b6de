"""A root directory with little more than Python, systemd's tools and a package manager in it.

It is copied from this machine, program by program with the libraries they load: no compiler, no
Python package, and its processes have no network. Needs root, no overlay and no download.
Below /usr all roots have the same inodes: replace a file there, never write into it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

_PROGRAMS = (
    *("sh", "bash", "cat", "chgrp", "chmod", "chown", "cksum", "cmp", "cp", "date", "env", "find"),
    *("getent", "grep", "head", "id", "kill", "ls", "mkdir", "mv", "rm", "sed", "setpriv", "sleep"),
    *("sort", "stat", "tar", "touch", "true", "uname", "diff", "ldconfig", "start-stop-daemon"),
    *("dpkg", "dpkg-deb", "dpkg-query", "dpkg-split", "dpkg-statoverride", "dpkg-trigger"),
    *("dpkg-maintscript-helper", "rpm", "rpmkeys", "python3.11"),
    *("systemctl", "systemd-analyze", "systemd-sysusers", "systemd-tmpfiles"),
)
_PYTHON = "/usr/lib/python3.11"
_FOLDERS = (_PYTHON, "/usr/lib/rpm", "/usr/lib/systemd", "/usr/share/zoneinfo/Europe")
_FILES = (
    *("/etc/nsswitch.conf", "/etc/login.defs"),
    *(f"/usr/share/dpkg/{name}table" for name in ("cpu", "tuple", "os", "abi")),
)
_EMPTY = (
    *("dev", "proc", "root", "run", "sys", "tmp", "var/log", "var/lib/rpm", "etc/systemd/system"),
    *("usr/bin", "usr/lib", "usr/lib64", "usr/sbin"),
    *("var/lib/dpkg/info", "var/lib/dpkg/triggers", "var/lib/dpkg/updates"),
)
_LEFT_OUT = ("config-*", "test", "idlelib", "tkinter", "dist-packages", "site-packages")
_PASSWD = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"
_GROUP = "root:x:0:\nnogroup:x:65534:\n"
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"

# What is mounted goes with the namespace.
_ENTER = """
for place in PLACES; do mount --rbind /$place "$0/$place"; done
exec chroot "$0" "$@"
"""


class CleanRoot:
    """A root directory of its own, below `directory`; like another one, or with no package yet."""

    def __init__(self, directory: Path, like: CleanRoot | None = None) -> None:
        self.path = directory / "root"
        self.mounted = "proc sys dev"
        template = _template() if like is None else like.path
        self.path.mkdir(parents=True)
        others = [template / name for name in os.listdir(template) if name != "usr"]
        subprocess.run(["cp", "-a", "--link", template / "usr", self.path], check=True)
        subprocess.run(["cp", "-a", *others, self.path], check=True)

    def start(self, *command: str, user: str) -> subprocess.Popen[bytes]:
        """Start a command in it, with this machine's network."""
        command = _as_user(user, command)
        return subprocess.Popen(
            ["unshare", "--mount", "sh", "-euc", self._enter(), str(self.path), *command],
            stdin=subprocess.DEVNULL,
            env={"PATH": _PATH, "LC_ALL": "C"},
        )

    def add_apt(self) -> None:
        """Add apt, which has no source of packages."""
        methods = ("copy", "file", "gpgv", "store")
        programs = ("apt-config", "apt-get", "apt-key", "awk", "base64", "cut", "gpgv", "mktemp")
        files = [f"/usr/lib/apt/methods/{name}" for name in methods]
        files += [path for name in programs if (path := shutil.which(name, path=_PATH))]
        for file in [*files, *_libraries(files)]:
            _copy(file, self.path)
        for folder in ("etc/apt/apt.conf.d", "var/lib/apt/lists/partial", "var/log/apt",
                       "var/cache/apt/archives/partial"):  # fmt: skip
            (self.path / folder).mkdir(parents=True)
        # What reads files of packages runs as root: the root has no user _apt.
        (self.path / "etc/apt/apt.conf.d/user").write_text('APT::Sandbox::User "root";\n')

    def run(self, *command: str, user: str = "", expect: int = 0, **variables: str) -> str:
        """Run a command in it, without a network; give what it printed, errors too."""
        if user:
            command = _as_user(user, command)
        done = subprocess.run(
            ["unshare", "--mount", "--net", "sh", "-euc", self._enter(), str(self.path), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            env={"PATH": _PATH, "LC_ALL": "C", **variables},
        )
        assert done.returncode == expect, f"{command}: {done.returncode}: {done.stdout}"
        return done.stdout

    def _enter(self) -> str:
        return _ENTER.replace("PLACES", self.mounted)

    def add(self, file: Path) -> str:
        """Copy a file to its top; give the path inside."""
        shutil.copy(file, self.path)
        return f"/{file.name}"

    def entries(self) -> dict[str, str]:
        """Each file, directory and link by its path, with owner, mode, and what it holds."""
        found: dict[str, str] = {}
        for directory, folders, files in os.walk(self.path):
            for name in [*folders, *files]:
                path = Path(directory, name)
                status = path.lstat()
                holds = os.readlink(path) if path.is_symlink() else str(status.st_size)
                holds = "" if path.is_dir() and not path.is_symlink() else holds
                owner = f"{status.st_uid}:{status.st_gid}"
                found[f"/{path.relative_to(self.path)}"] = f"{owner} {status.st_mode:o} {holds}"
        return found


def _as_user(user: str, command: tuple[str, ...]) -> tuple[str, ...]:
    name = ("--reuid", user, "--regid", user, "--clear-groups", "--bounding-set=-all")
    return ("setpriv", *name, *command)


@cache
def _template() -> Path:
    """Make the tree that all are copied from, once in a run of the tests."""
    import atexit
    import tempfile

    top = Path(tempfile.mkdtemp(prefix="ccagent-root-"))
    atexit.register(shutil.rmtree, top, ignore_errors=True)
    for folder in _EMPTY:
        (top / folder).mkdir(parents=True)
    top.chmod(0o755)
    (top / "tmp").chmod(0o1777)
    for folder in ("bin", "sbin", "lib", "lib64"):
        (top / folder).symlink_to(f"usr/{folder}")
    (top / "etc/passwd").write_text(_PASSWD)
    (top / "etc/group").write_text(_GROUP)
    (top / "var/lib/dpkg/status").touch()
    (top / "var/lib/dpkg/available").touch()
    for folder in _FOLDERS:
        ignore = shutil.ignore_patterns(*_LEFT_OUT)
        shutil.copytree(folder, f"{top}{folder}", symlinks=True, ignore=ignore)
    programs = [path for name in _PROGRAMS if (path := shutil.which(name, path=_PATH))]
    inside = [str(p) for f in _FOLDERS for p in Path(f).rglob("*") if _is_elf(p)]
    libraries = _libraries([*programs, *inside])
    for file in [*programs, *_FILES, *libraries, *_of_libc(libraries)]:
        _copy(file, top)
    subprocess.run(["ldconfig", "-r", top], check=True)
    return top


def _libraries(programs: list[str]) -> list[str]:
    """Name the libraries that the dynamic linker would load for these."""
    done = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False)
    return sorted(set(re.findall(r"(/\S+) \(0x", done.stdout)))


def _of_libc(libraries: list[str]) -> list[str]:
    """Name what else comes with the C library and the compiler, which wheels are linked to."""
    (libc,) = (Path(library) for library in libraries if library.endswith("/libc.so.6"))
    names = ("pthread.so.0", "dl.so.2", "rt.so.1", "gcc_s.so.1", "stdc++.so.6")
    return [str(libc.with_name(f"lib{name}")) for name in names]


def _is_elf(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _copy(file: str, top: Path) -> None:
    """Copy a file, and what it points to, where this machine has it."""
    path = Path(os.path.realpath(os.path.dirname(file)), os.path.basename(file))
    target = Path(f"{top}{path}")
    if target.exists() or target.is_symlink():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(path, target, follow_symlinks=False)
    if path.is_symlink():
        _copy(os.path.join(path.parent, os.readlink(path)), top)
