"""The packages, built on the spot, in a root without compiler, network or Python modules."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.clean_root import CleanRoot
from tests.schema import validate

ROOT = Path(__file__).parent.parent.parent
CONFIGURATION = "/etc/ccagent/ccagent.toml"
NAMES = ("ccagent-core", "ccagent", "ccagent-slurm", "ccagent-lustre")
UNITS = (
    *("ccagent.service", "ccagent-kernel.service"),
    *("ccagent-sample.service", "ccagent-sample.timer"),
)
JOB_STATS = ROOT / "tests/data/lustre/layouts/ost_v2_14_0.txt"
LCTL = """#!/bin/sh
case $1,$2 in
    list_param,obdfilter.*) echo obdfilter.scratch-OST0001.job_stats ;;
    get_param,*) echo obdfilter.scratch-OST0001.job_stats=; cat /job_stats ;;
    *) echo error: No such file or directory >&2; exit 2 ;;
esac
"""


class Built(NamedTuple):
    """The packages of a build, by name."""

    rpm: dict[str, Path]
    deb: dict[str, Path]


def built(directory: Path, release: int, *before: str) -> Built:
    subprocess.run(
        [*before, ROOT / "packaging/build", "all", "--output", directory,
         "--release", str(release), "--python", sys.executable],
        check=True,
    )  # fmt: skip
    return Built(
        {name: next(directory.glob(f"{name}-[0-9]*.rpm")) for name in NAMES},
        {name: next(directory.glob(f"{name}_[0-9]*.deb")) for name in NAMES},
    )


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Wheels that are missing are downloaded here."""
    return built(tmp_path_factory.mktemp("first"), 1)


@pytest.fixture(scope="module")
def second(first: Built, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The same, a release later, without a network."""
    return built(tmp_path_factory.mktemp("second"), 2, "unshare", "--net")


@pytest.fixture
def root(tmp_path: Path) -> CleanRoot:
    return CleanRoot(tmp_path)


Install = Callable[[CleanRoot, Built, tuple[str, ...]], str]


def rpm_install(root: CleanRoot, packages: Built, names: tuple[str, ...]) -> str:
    files = [root.add(packages.rpm[name]) for name in names]
    return root.run("rpm", "--upgrade", "--nodeps", *files)


def deb_install(root: CleanRoot, packages: Built, names: tuple[str, ...]) -> str:
    files = [root.add(packages.deb[name]) for name in names]
    return root.run("dpkg", "--install", "--force-depends", *files)


def rpm_verified(root: CleanRoot, names: tuple[str, ...]) -> str:
    return root.run("rpm", "--verify", "--nodeps", *names)


def deb_verified(root: CleanRoot, names: tuple[str, ...]) -> str:
    return root.run("dpkg", "--verify", *names)


def sampled(root: CleanRoot) -> None:
    """Take a sample as the service does, and look whether it left bytecode behind."""
    command = ("ccagent", "sample", "--once", "--config", CONFIGURATION)
    *complaints, envelope = root.run(*command, user="ccagent").splitlines()
    validate("SampleEnvelope", envelope)
    assert all("I/O counters" in complaint for complaint in complaints)


def left(before: dict[str, str], after: dict[str, str]) -> set[str]:
    """Name what has come or changed, but for users, databases, and the packages themselves."""
    accounts = {f"/etc/{name}{end}" for name in ("passwd", "group", "shadow", "gshadow")
                for end in ("", "-")} | {"/etc/.pwd.lock"}  # fmt: skip
    databases = ("/root/.rpmdb", "/var/lib/rpm", "/var/lib/dpkg", "/var/log", "/run/systemd")
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    manuals = {"/usr/share/man", "/usr/share/man/man1", "/usr/share/man/man5"}
    empty = {"/usr/lib/sysusers.d", "/usr/share/doc", "/var/tmp", *manuals}
    return {
        path
        for path in changed - accounts - empty
        if not path.startswith(databases) and not path.endswith((".rpm", ".deb"))
    }


@pytest.mark.parametrize(
    ("install", "verified"), [(rpm_install, rpm_verified), (deb_install, deb_verified)]
)
def test_a_node_can_sample_as_soon_as_it_is_installed(
    install: Install,
    verified: Callable[[CleanRoot, tuple[str, ...]], str],
    root: CleanRoot,
    first: Built,
) -> None:
    names = ("ccagent-core", "ccagent")
    install(root, first, names)
    assert "missing" not in verified(root, names)
    account = root.run("getent", "passwd", "ccagent").split(":")
    assert account[5:] == ["/", "/usr/sbin/nologin\n"]
    for path, expected in (
        (CONFIGURATION, "640 root:ccagent"),
        ("/etc/ccagent/conf.d/node.toml", "640 root:ccagent"),
        ("/etc/ccagent", "750 root:ccagent"),
        ("/var/lib/ccagent", "750 ccagent:ccagent"),
        ("/usr/bin/ccagent", "755 root:root"),
    ):
        assert root.run("stat", "-c", "%a %U:%G", path).strip() == expected, path
    installed = root.entries()
    assert "no errors" in root.run("ccagent", "config", "check", CONFIGURATION, user="ccagent")
    sampled(root)
    assert left(installed, root.entries()) == set()
    enabled = root.path / "etc/systemd/system"
    assert list(enabled.iterdir()) == []


def test_units_are_right_and_hardened(root: CleanRoot, first: Built) -> None:
    rpm_install(root, first, NAMES)
    folder = "/usr/lib/systemd/system"
    units = [f"{folder}/{unit}" for unit in UNITS]
    assert root.run("systemd-analyze", "verify", "--man=no", *units) == ""
    for unit in ("ccagent.service", "ccagent-sample.service"):
        root.run("systemd-analyze", "security", "--offline=true", "--threshold=30", unit)
    examples = root.path / "usr/share/ccagent/drop-ins"
    for example in sorted(examples.glob("*.conf")):
        place = root.path / f"etc/systemd/system/ccagent.service.d/{example.name}"
        place.parent.mkdir(exist_ok=True)
        shutil.copy(example, place)
        assert root.run("systemd-analyze", "verify", "--man=no", units[0]) == "", example.name
        limit = "30"
        root.run("systemd-analyze", "security", "--offline=true", f"--threshold={limit}", UNITS[0])
        place.unlink()


def test_the_units_of_daemon_and_timer_are_hardened_alike() -> None:
    folder = ROOT / "packaging/tree/ccagent-core/usr/lib/systemd/system"
    lines = [
        set((folder / unit).read_text().partition("\nUser=")[2].splitlines())
        for unit in ("ccagent.service", "ccagent-sample.service")
    ]
    assert lines[0] - lines[1] == {"RuntimeDirectory=ccagent", "RuntimeDirectoryMode=0750",
                                   "[Install]", "WantedBy=multi-user.target"}  # fmt: skip
    assert lines[1] <= lines[0]


@pytest.mark.parametrize("install", [rpm_install, deb_install])
def test_an_upgrade_keeps_what_was_edited(
    install: Install, root: CleanRoot, first: Built, second: Built
) -> None:
    install(root, first, NAMES)
    edited = root.path / CONFIGURATION[1:]
    edited.write_text(edited.read_text() + "# edited\n")
    before = edited.read_text()
    install(root, second, NAMES)
    assert edited.read_text() == before
    status = edited.stat()
    assert (status.st_uid, status.st_mode & 0o777) == (0, 0o640)
    assert status.st_gid == int(root.run("getent", "group", "ccagent").split(":")[2])
    assert {p.name for p in edited.parent.iterdir()} == {"ccagent.toml", "conf.d"}
    sampled(root)


def test_rpm_leaves_nothing_but_what_was_edited(root: CleanRoot, first: Built) -> None:
    before = root.entries()
    rpm_install(root, first, NAMES)
    (root.path / CONFIGURATION[1:]).write_text('cluster = "x"\n')
    sampled(root)
    root.run("rpm", "--erase", "--nodeps", *NAMES)
    assert left(before, root.entries()) == {
        *("/etc/ccagent", "/etc/ccagent/ccagent.toml.rpmsave"),
    }


def test_dpkg_keeps_the_configuration_until_it_is_purged(root: CleanRoot, first: Built) -> None:
    before = root.entries()
    deb_install(root, first, NAMES)
    (root.path / CONFIGURATION[1:]).write_text('cluster = "x"\n')
    sampled(root)
    waiting = root.path / "var/lib/ccagent/outbox"
    waiting.mkdir()
    (waiting / "broker.outbox").touch()
    root.run("dpkg", "--remove", "--force-depends", *reversed(NAMES))
    kept = left(before, root.entries())
    assert {p for p in kept if not p.startswith("/var/lib/ccagent")} == {
        *("/etc/ccagent", CONFIGURATION, "/etc/ccagent/conf.d"),
        *(f"/etc/ccagent/conf.d/{name}.toml" for name in ("node", "slurm", "lustre")),
    }
    root.run("dpkg", "--purge", *reversed(NAMES))
    assert left(before, root.entries()) == set()


@pytest.mark.parametrize("install", [rpm_install, deb_install])
def test_a_lustre_server_gets_its_agent_alone_and_needs_lctl_alone(
    install: Install, root: CleanRoot, first: Built
) -> None:
    install(root, first, ("ccagent-core", "ccagent-lustre"))
    files = sorted((root.path / "etc/ccagent").rglob("*.toml"))
    tables = [tomllib.loads(file.read_text()) for file in files]
    assert [list(table["agents"]) for table in tables if "agents" in table] == [["lustre"]]

    _, _, job_stats = JOB_STATS.read_text().partition("obdfilter.scratch-OST0001.job_stats=\n")
    (root.path / "job_stats").write_text(job_stats)
    lctl = root.path / "usr/sbin/lctl"
    lctl.write_text(LCTL)
    lctl.chmod(0o755)
    told = root.run("ccagent", "lustre", "--once", "--config", CONFIGURATION, user="ccagent")
    records = json.loads(told[told.index("[{") :])
    assert records[0]["target"] == "scratch-OST0001"
    assert records[0]["entry_id"] == "11317854:17627127:r01c01"
    assert records[0]["write_bytes"] == 26214400


@pytest.mark.parametrize("role", ["ccagent", "ccagent-slurm", "ccagent-lustre"])
def test_what_a_role_configures_can_be_used(role: str, root: CleanRoot, first: Built) -> None:
    deb_install(root, first, ("ccagent-core", role))
    files = sorted((root.path / "etc/ccagent").rglob("*.toml"))
    whole = root.path / "tmp/whole.toml"
    whole.write_text("".join(file.read_text() for file in files))
    assert "no errors" in root.run("ccagent", "config", "check", "/tmp/whole.toml")


def test_two_builds_hold_the_same(first: Built, second: Built) -> None:
    for name in NAMES:
        payloads = [
            subprocess.run(
                ["rpm", "-qp", "--queryformat", "%{PAYLOADDIGEST}", each.rpm[name]],
                capture_output=True, text=True, check=True,
            ).stdout
            for each in (first, second)
        ]  # fmt: skip
        assert payloads[0] == payloads[1] != "", name
        contents = [
            hashlib.sha256(
                subprocess.run(
                    ["dpkg-deb", "--fsys-tarfile", each.deb[name]], capture_output=True, check=True
                ).stdout
            ).hexdigest()
            for each in (first, second)
        ]
        assert contents[0] == contents[1], name


def test_a_package_needs_and_offers_nothing_of_python_s_modules(first: Built) -> None:
    for name in NAMES:
        told = subprocess.run(
            ["rpm", "-qp", "--requires", "--provides", first.rpm[name]],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        foreign = [
            line for line in told.splitlines()
            if not line.startswith(("ccagent", "config(", "rpmlib(", "/bin/sh", "(/usr/bin/"))
        ]  # fmt: skip
        assert foreign == []


def test_the_launcher_takes_the_newest_python_that_it_has_bytecode_for(
    root: CleanRoot, first: Built
) -> None:
    rpm_install(root, first, ("ccagent-core",))
    for minor in (12, 13):
        newer = root.path / f"usr/bin/python3.{minor}"
        newer.write_text(f'#!/bin/sh\necho "3.{minor} $*"\n')
        newer.chmod(0o755)
    assert "Usage: ccagent" in root.run("ccagent", "--help")
    for bytecode in (root.path / "usr/lib/ccagent").glob("__pycache__/__main__.*.pyc"):
        bytecode.unlink()
    assert root.run("ccagent", "--help") == "3.13 -I -S -B /usr/lib/ccagent --help\n"
    chosen = root.run("ccagent", "a b", CCAGENT_PYTHON="/usr/bin/python3.12")
    assert chosen == "3.12 -I -S -B /usr/lib/ccagent a b\n"


def test_the_launcher_says_when_there_is_no_python(root: CleanRoot, first: Built) -> None:
    rpm_install(root, first, ("ccagent-core",))
    python = root.path / "usr/bin/python3.11"
    python.rename(python.with_name("python3"))
    assert "Usage: ccagent" in root.run("ccagent", "--help")
    old = python.with_name("python3")
    old.write_text("#!/bin/sh\nexit 1\n")
    assert "install python3.11" in root.run("ccagent", "--help", expect=127)
    old.unlink()
    assert "install python3.11" in root.run("ccagent", "--help", expect=127)


def test_nothing_around_it_changes_what_is_run(root: CleanRoot, first: Built) -> None:
    rpm_install(root, first, ("ccagent-core",))
    stranger = root.path / "tmp/click.py"
    stranger.write_text("raise SystemExit('not this one')\n")
    told = root.run("env", "-C", "/tmp", "ccagent", "--help", PYTHONPATH="/tmp", PYTHONHOME="/tmp")
    assert "Usage: ccagent" in told
    added = root.path / "usr/local/lib/ccagent"
    added.mkdir(parents=True)
    shutil.copy(stranger, added)
    (added / "extra.py").write_text("")
    assert "Usage: ccagent" in root.run("ccagent", "--help")


def test_what_the_program_generates_is_packed(tmp_path: Path, first: Built) -> None:
    subprocess.run(
        [ROOT / "packaging/build", "root", "--wheels", ROOT / "build/wheels", "--output", tmp_path,
         "--python", sys.executable],
        check=True,
    )  # fmt: skip
    core = tmp_path / "root/ccagent-core"
    for name in (
        "man/man1/ccagent.1.gz",
        "man/man5/ccagent.toml.5.gz",
        "bash-completion/completions/ccagent",
        "zsh/site-functions/_ccagent",
        "fish/vendor_completions.d/ccagent.fish",
        "ccagent/examples/compute-node-nats.toml",
    ):
        assert (core / "usr/share" / name).stat().st_size > 100
    configuration = (core / "etc/ccagent/ccagent.toml").read_text()
    assert tomllib.loads(configuration) == {
        "lock-directory": "/run/ccagent",
        "outbox": {"directory": "/var/lib/ccagent/outbox"},
    }
    assert "#cluster = " in configuration


def test_a_wheel_that_is_not_the_pinned_one_is_refused(tmp_path: Path, first: Built) -> None:
    wheels = tmp_path / "wheels"
    shutil.copytree(ROOT / "build/wheels", wheels)
    click = next(wheels.glob("click-*.whl"))
    click.write_bytes(click.read_bytes() + b"\n")
    done = subprocess.run(
        [sys.executable, ROOT / "packaging/vendor.py", "unpack", wheels, tmp_path / "tree",
         "--arch", os.uname().machine],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert f"{click.name}: its sha256 is" in done.stderr


def test_every_dependency_is_pinned_and_nothing_else() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {re.split("[<>=]", each)[0] for each in project["dependencies"]}
    lines = (ROOT / "packaging/wheels.txt").read_text().splitlines()
    assert {line.partition("==")[0] for line in lines if "==" in line} == {*wanted, "setuptools"}
