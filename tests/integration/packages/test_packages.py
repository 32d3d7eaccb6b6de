"""The packages, built on the spot, in a root without compiler, network or Python modules."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.built_packages import NAMES, STORES, Built
from tests.support.certificates import Authority
from tests.support.clean_root import CleanRoot
from tests.support.documents import links
from tests.support.effort import IS_NIGHTLY
from tests.support.paths import ROOT
from tests.support.schema import validate

CONFIGURATION = "/etc/ccagent/ccagent.toml"
UNITS = (
    *("ccagent.service", "ccagent-kernel.service", "ccagent-control.service"),
    "ccagent-migfra.service",
    *("ccagent-sample.service", "ccagent-sample.timer"),
)
JOB_STATS = ROOT / "tests/data/lustre/layouts/ost_v2_14_0.txt"
LINTED = (*NAMES, *STORES) if IS_NIGHTLY else NAMES
"""What linters look through: the libraries of the store take them longer than all others."""

LCTL = """#!/bin/sh
case $1,$2 in
    list_param,obdfilter.*) echo obdfilter.scratch-OST0001.job_stats ;;
    get_param,*) echo obdfilter.scratch-OST0001.job_stats=; cat /job_stats ;;
    *) echo error: No such file or directory >&2; exit 2 ;;
esac
"""


@pytest.fixture(scope="module")
def tree(first: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the Debian packages."""
    directory = tmp_path_factory.mktemp("tree")
    for package in first.deb.values():
        subprocess.run(["dpkg-deb", "--extract", package, directory], check=True)
    return directory


PYTHON = """Package: python3.11
Version: 3.11
Architecture: all
Provides: libc6 (= 2.36), systemd
Maintainer: x <x@example.org>
Description: a Python
"""
Install = Callable[[CleanRoot, Built, tuple[str, ...]], str]
Installed = Callable[..., CleanRoot]
NODE = ("ccagent-core", "ccagent-node")


def rpm_install(root: CleanRoot, packages: Built, names: tuple[str, ...]) -> str:
    files = [root.add(packages.rpm[name]) for name in names]
    return root.run("rpm", "--upgrade", "--nodeps", *files)


def deb_install(root: CleanRoot, packages: Built, names: tuple[str, ...]) -> str:
    """Install in this order: without the distribution's packages, dpkg would choose any other."""
    files = [root.add(packages.deb[name]) for name in names]
    return "".join(root.run("dpkg", "--install", "--force-depends", file) for file in files)


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
    shared = {f"/usr/lib/{name}.d" for name in ("sysusers", "tmpfiles")}
    shared |= {f"/usr/share/{name}" for name in ("doc", "licenses", "lintian", "lintian/overrides")}
    empty = {"/var/tmp", *shared, *manuals}
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
    installed: Installed,
) -> None:
    root = installed(install, *NODE)
    assert "missing" not in verified(root, NODE)
    account = root.run("getent", "passwd", "ccagent").split(":")
    assert account[5:] == ["/", "/usr/sbin/nologin\n"]
    for path, expected in (
        (CONFIGURATION, "640 root:ccagent"),
        ("/etc/ccagent", "750 root:ccagent"),
        ("/var/lib/ccagent", "750 ccagent:ccagent"),
        ("/var/lib/ccagent/outbox", "750 ccagent:ccagent"),
        ("/usr/bin/ccagent", "755 root:root"),
    ):
        assert root.run("stat", "-c", "%a %U:%G", path).strip() == expected, path
    before = root.entries()
    assert "no errors" in root.run("ccagent", "config", "check", CONFIGURATION, user="ccagent")
    sampled(root)
    assert left(before, root.entries()) == set()
    enabled = root.path / "etc/systemd/system"
    assert list(enabled.iterdir()) == []


def test_units_are_right_and_hardened(installed: Installed) -> None:
    root = installed(rpm_install, *NAMES)
    folder = "/usr/lib/systemd/system"
    units = [f"{folder}/{unit}" for unit in UNITS]
    assert root.run("systemd-analyze", "verify", "--man=no", *units) == ""
    for unit in ("ccagent.service", "ccagent-sample.service"):
        root.run("systemd-analyze", "security", "--offline=true", "--threshold=30", unit)
    examples = root.path / "usr/share/ccagent/drop-ins"
    for example in sorted(examples.glob("*.conf")):
        unit = f"ccagent{'-control' if example.name.startswith('control-') else ''}.service"
        place = root.path / f"etc/systemd/system/{unit}.d/{example.name}"
        place.parent.mkdir(exist_ok=True)
        shutil.copy(example, place)
        verified = root.run("systemd-analyze", "verify", "--man=no", f"{folder}/{unit}")
        assert verified == "", example.name
        root.run("systemd-analyze", "security", "--offline=true", "--threshold=30", unit)
        place.unlink()


def test_the_control_service_is_hardened_with_any_class_allowed(installed: Installed) -> None:
    root = installed(rpm_install, *NAMES)
    unit = "ccagent-control.service"
    place = root.path / f"etc/systemd/system/{unit}.d"
    place.mkdir()
    examples = root.path / "usr/share/ccagent/drop-ins"
    shutil.copy(examples / "control-cpu-freq.conf", place)
    root.run("systemd-analyze", "security", "--offline=true", "--threshold=25", unit)
    drop_ins = sorted(examples.glob("control-*.conf"))
    assert len(drop_ins) == 10
    for each in drop_ins:
        shutil.copy(each, place)
    root.run("systemd-analyze", "security", "--offline=true", "--threshold=40", unit)
    text = (root.path / "usr/lib/systemd/system/ccagent.service").read_text()
    assert "CapabilityBoundingSet=\n" in text
    assert "control" not in text


def test_the_unit_for_a_virtual_environment_has_another_program_alone(
    installed: Installed,
) -> None:
    root = installed(rpm_install, *NAMES)
    (root.path / "opt/ccagent/bin").mkdir(parents=True)
    (root.path / "opt/ccagent/bin/ccagent").symlink_to("/usr/bin/ccagent")
    unit = "/usr/share/ccagent/venv/ccagent.service"
    assert root.run("systemd-analyze", "verify", "--man=no", unit) == ""
    packaged = (root.path / "usr/lib/systemd/system/ccagent.service").read_text().splitlines()
    other = (root.path / unit[1:]).read_text().splitlines()
    assert set(other) - set(packaged) == {other[0], "ExecStart=/opt/ccagent/bin/ccagent run"}
    assert set(packaged) - set(other) == {"ExecStart=/usr/bin/ccagent run"}


def test_cron_runs_a_sample_politely_and_logs_with_priorities(tmp_path: Path) -> None:
    """The line of the example, run as cron does, with programs that note how they are called."""
    text = (ROOT / "packaging/tree/ccagent-core/usr/share/ccagent/cron/ccagent").read_text()
    variables = dict(re.findall(r"^([A-Z]+)=(.*)$", text, re.MULTILINE))
    assert variables["MAILTO"] == "root"
    (job,) = re.findall(r"^(\* .*)$", text, re.MULTILINE)
    *schedule, user, line = job.split(" ", 6)
    assert (schedule, user) == (["*"] * 5, "ccagent")
    for name, script in (
        ("ccagent", 'echo "<4>$(nice) $(ionice) $*" >&2'),
        ("logger", f"{{ echo $*; cat; }} >{tmp_path}/log"),
        ("sleep", "exit 0"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    command = line.replace("\\%", "%").replace("/var/lib/ccagent", str(tmp_path))
    subprocess.run(
        [variables["SHELL"], "-c", command],
        check=True, env={"PATH": f"{tmp_path}:{variables['PATH']}"}, timeout=30,
    )  # fmt: skip
    options, logged = (tmp_path / "log").read_text().splitlines()
    assert options == "-t ccagent --prio-prefix -p daemon.warning"
    niceness = min(os.nice(0) + 10, 19)
    assert logged == f"<4>{niceness} idle sample --once --config {CONFIGURATION}"


def test_the_units_of_daemon_and_timer_are_hardened_alike() -> None:
    folder = ROOT / "packaging/tree/ccagent-core/usr/lib/systemd/system"
    lines = [
        set((folder / unit).read_text().partition("\nUser=")[2].splitlines())
        for unit in ("ccagent.service", "ccagent-sample.service")
    ]
    assert lines[0] - lines[1] == {"RuntimeDirectory=ccagent", "RuntimeDirectoryMode=0750",
                                   "[Install]", "WantedBy=multi-user.target"}  # fmt: skip
    assert lines[1] <= lines[0]


EXAMPLES = sorted((ROOT / "packaging/examples").glob("compute-node-*.toml"))
SECRETS = ("nats-password", "mqtt-password", "ingest-password", "kafka-password", "store-token")
SONAR = """
[global]
cluster = fox.example.org
[http]
api-root = https://ingest.example.org/api
[sample]
cadence = 5m
[sysinfo]
cadence = 24h
"""


def prepared(root: CleanRoot, authority: Authority) -> list[str]:
    """Add what the examples name, and Sonar's configuration; give all configurations."""
    etc = root.path / "etc/ccagent"
    certificate = Path(authority.certificate).read_text()
    for name in (*SECRETS, "ca.pem"):
        (etc / name).write_text(certificate if name == "ca.pem" else "secret")
        root.run("chgrp", "ccagent", f"/etc/ccagent/{name}")
        (etc / name).chmod(0o640)
    library = root.path / "usr/local/lib/ccagent/confluent_kafka"
    library.mkdir(parents=True)
    (library / "__init__.py").touch()
    (root.path / "tmp/sonar.ini").write_text(SONAR)
    told = root.run("ccagent", "config", "import", "/tmp/sonar.ini").splitlines()
    imported = "\n".join(line for line in told if not line.startswith("ccagent: "))
    return [*(example.read_text() for example in EXAMPLES), imported]


def use(root: CleanRoot, configuration: str) -> None:
    """Configure the node as an administrator does: whole, below the packages' defaults."""
    (root.path / CONFIGURATION[1:]).write_text(configuration)
    assert "no errors" in root.run("ccagent", "config", "check", CONFIGURATION, user="ccagent")


@pytest.mark.parametrize("install", [rpm_install, deb_install])
def test_each_example_can_be_configured_and_survives_an_upgrade_without_a_question(
    install: Install, installed: Installed, second: Built, tmp_path: Path
) -> None:
    (tmp_path / "authority").mkdir()
    authority = Authority(tmp_path / "authority")
    root = installed(install, *NODE)
    configurations = prepared(root, authority)
    use(root, configurations[-1])
    install(root, second, NODE)  # with another text of the example that has all keys
    assert (root.path / CONFIGURATION[1:]).read_text() == configurations[-1]
    assert root.run("stat", "-c", "%a %U:%G", CONFIGURATION).strip() == "640 root:ccagent"
    left_beside = {path.name for path in (root.path / "etc/ccagent").glob("*.*-*")}
    assert left_beside | {path.name for path in (root.path / "etc/ccagent").glob("*.rpm*")} == set()
    for configuration in configurations:
        use(root, configuration)
    use(root, "")
    sampled(root)


def test_a_missing_library_is_named_with_the_command_that_installs_it_here(
    installed: Installed,
) -> None:
    root = installed(rpm_install, *NODE)
    (root.path / CONFIGURATION[1:]).write_text('[sinks.kafka]\nurl = "kafka://127.0.0.1"\n')
    told = root.run("ccagent", "config", "check", CONFIGURATION, expect=2)
    command = "/usr/bin/python3.11 -m pip install --target /usr/local/lib/ccagent confluent-kafka"
    assert told.endswith(f": {command}\n")


WAITING = """
[agents.sample]
every = "1m"
[sinks.backend]
url = "nats://127.0.0.1:4222"
"""


def test_a_first_try_as_root_leaves_the_outbox_to_the_service(installed: Installed) -> None:
    root = installed(deb_install, *NODE)
    (root.path / CONFIGURATION[1:]).write_text(WAITING)
    command = ("ccagent", "sample", "--once", "--config", CONFIGURATION)
    root.run(*command)
    root.run(*command, user="ccagent")
    owners = root.run("find", "/var/lib/ccagent", "!", "-user", "ccagent")
    assert owners == ""
    outbox = root.run("ccagent", "outbox", "--config", CONFIGURATION, user="ccagent")
    assert re.search(r"^backend +2 ", outbox, re.MULTILINE), outbox


def test_debian_s_packages_are_installed_where_no_proc_is_mounted(
    root: CleanRoot, first: Built
) -> None:
    """As image builders do; the first boot creates the directories of tmpfiles.d."""
    root.mounted = "dev"
    deb_install(root, first, ("ccagent-core", "ccagent-node", *STORES))
    root.mounted = "proc sys dev"
    for name in ("ccagent-core", "ccagent-node", *STORES):
        state = root.run("dpkg-query", "--show", "--showformat=${db:Status-Status}", name)
        assert state == "installed"
    root.run("systemd-tmpfiles", "--create")
    sampled(root)


def test_debian_s_bytecode_follows_the_pythons_that_come(installed: Installed) -> None:
    root = installed(deb_install, *NODE)
    bytecode = root.path / "usr/lib/ccagent/__pycache__/__main__.cpython-311.pyc"
    assert bytecode.exists()
    bytecode.unlink()
    package = root.path / "newer"
    (package / "DEBIAN").mkdir(parents=True)
    (package / "DEBIAN/control").write_text(PYTHON)
    (package / "usr/bin").mkdir(parents=True)
    shutil.copy2(root.path / "usr/bin/python3.11", package / "usr/bin/python3.11")
    root.run("dpkg-deb", "-Znone", "--build", "/newer", "/newer.deb")
    root.run("dpkg", "--install", "/newer.deb")
    assert bytecode.exists()


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
    (root.path / "var/lib/ccagent/outbox/broker.outbox").touch()
    root.run("dpkg", "--remove", "--force-depends", *reversed(NAMES))
    kept = left(before, root.entries())
    assert {p for p in kept if not p.startswith("/var/lib/ccagent")} == {
        *("/etc/ccagent", CONFIGURATION),
    }
    root.run("dpkg", "--purge", *reversed(NAMES))
    assert left(before, root.entries()) == set()


@pytest.mark.parametrize("install", [rpm_install, deb_install])
def test_a_lustre_server_gets_its_agent_alone_and_needs_lctl_alone(
    install: Install, installed: Installed
) -> None:
    root = installed(install, "ccagent-core", "ccagent-lustre")
    files = sorted((root.path / "usr/share/ccagent/conf.d").glob("*.toml"))
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


SERVE = """
ccagent store metrics -v 2>/tmp/log & store=$!
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    grep -q "pages at" /tmp/log && grep -q listening /tmp/log && break
    sleep 0.5
done
cat /tmp/log
kill $store && wait $store
"""
COMPILED = """
import sys
sys.path[:0] = ["/usr/lib/ccagent", "/usr/lib/ccagent-store"]
from ccagent.stores.metrics.known_keys import make_scanner
from ccagent.stores.metrics.query import choose
print(type(make_scanner()).__name__, choose.__module__.rpartition(".")[2])
"""


@pytest.mark.parametrize(
    ("install", "verified"), [(rpm_install, rpm_verified), (deb_install, deb_verified)]
)
def test_a_store_can_be_started_as_soon_as_it_is_installed(
    install: Install,
    verified: Callable[[CleanRoot, tuple[str, ...]], str],
    root: CleanRoot,
    first: Built,
) -> None:
    before = root.entries()
    install(root, first, ("ccagent-core", *STORES))
    assert "missing" not in verified(root, STORES)
    for path, expected in (
        ("/etc/ccagent/store.toml", "640 root:ccagent"),
        ("/var/lib/ccagent-store", "750 ccagent:ccagent"),
    ):
        assert root.run("stat", "-c", "%a %U:%G", path).strip() == expected, path
    assert root.run("python3.11", "-I", "-S", "-B", "-c", COMPILED) == (
        "CompiledScanner largest_triangles\n"
    )
    told = root.run("ccagent", "store", "metrics", "check", user="ccagent")
    assert told == "metrics: *\nlistens on 127.0.0.1:8082, keeps 48h in memory\n"
    # Without a network there is no 127.0.0.1.
    configuration = root.path / "etc/ccagent/store.toml"
    key = "dGVzdHRlc3R0ZXN0dGVzdHRlc3R0ZXN0dGVzdHRlc3Q="
    text = configuration.read_text().replace("127.0.0.1", "0.0.0.0")
    pages = '[web]\nlisten = "0.0.0.0:8084"'
    configuration.write_text(f'{text}\njwt-public-key = "{key}"\n{pages}\n')
    told = root.run("sh", "-euc", SERVE, user="ccagent")
    assert "listening on 0.0.0.0, port 8082" in told
    assert "pages at http://0.0.0.0:8084/" in told
    assert list((root.path / "var/lib/ccagent-store/log").iterdir()) == []
    unit = "ccagent-store.service"
    folder = "/usr/lib/systemd/system"
    assert root.run("systemd-analyze", "verify", "--man=no", f"{folder}/{unit}") == ""
    root.run("systemd-analyze", "security", "--offline=true", "--threshold=30", unit)
    if install is deb_install:
        root.run("dpkg", "--purge", *reversed(STORES), "ccagent-core")
        assert left(before, root.entries()) == {"/tmp/log"}
    else:
        root.run("rpm", "--erase", "--nodeps", *STORES)
        root.run("rpm", "--erase", "--nodeps", "ccagent-core")
        assert left(before, root.entries()) == {
            "/tmp/log", "/etc/ccagent", "/etc/ccagent/store.toml.rpmsave", "/var/lib/ccagent-store",
            "/var/lib/ccagent-store/jobs.sqlite", "/var/lib/ccagent-store/lock",
            "/var/lib/ccagent-store/log", "/var/lib/ccagent-store/usage.sqlite",
        }  # fmt: skip


def test_the_scanner_fits_old_systems(first: Built, tmp_path: Path) -> None:
    module = tmp_path / "line_scanner.abi3.so"
    content = contents(first.deb["ccagent-store"])
    module.write_bytes(content[f"/usr/lib/ccagent/ccagent/stores/metrics/{module.name}"])
    dynamic = subprocess.run(["readelf", "-dV", module], capture_output=True, text=True, check=True)
    assert "PATH" not in dynamic.stdout
    assert max(int(minor) for minor in re.findall(r"GLIBC_2\.(\d+)", dynamic.stdout)) <= 28


@pytest.mark.skipif(not IS_NIGHTLY, reason="builds twice: HYPOTHESIS_PROFILE=nightly")
def test_the_scanner_is_the_same_in_each_build(source: Path, first: Built, tmp_path: Path) -> None:
    def built(place: str, **variables: str) -> tuple[Path, str]:
        shutil.copytree(source, tmp_path / place, symlinks=True)
        tree = tmp_path / f"{place}-tree"
        done = subprocess.run(
            [sys.executable, ROOT / "packaging/vendor.py", "build", ROOT / "build/wheels", tree,
             tmp_path / place],
            capture_output=True, text=True, check=True, env=os.environ | variables,
        )  # fmt: skip
        return tree / "ccagent/stores/metrics/line_scanner.abi3.so", done.stderr

    module, told = built("one")
    assert told == ""
    packed = contents(first.deb["ccagent-store"])
    name = f"/usr/lib/ccagent/{module.relative_to(tmp_path / 'one-tree')}"
    assert packed[name] == module.read_bytes()
    module, told = built("without", CC="no-such-compiler")
    assert not module.exists()
    assert "ccagent-store without its compiled modules" in told


@pytest.mark.parametrize("role", ["ccagent-node", "ccagent-slurm", "ccagent-lustre"])
def test_what_a_role_configures_can_be_used(role: str, installed: Installed) -> None:
    root = installed(rpm_install, "ccagent-core", role)
    told = root.run("ccagent", "config", "check", CONFIGURATION, user="ccagent")
    assert told.endswith(".toml: no errors\n")
    assert told.count("/usr/share/ccagent/conf.d/") == 2


def contents(package: Path) -> dict[str, bytes]:
    """The regular files of a Debian package, or of an RPM package their digests, by path."""
    if package.suffix == ".rpm":
        form = "[%{FILENAMES} %{FILEDIGESTS}\n]"
        command: list[str | Path] = ["rpm", "-qp", "--queryformat", form, package]
        told = subprocess.run(command, capture_output=True, check=True).stdout
        lines = [line.partition(b" ") for line in told.splitlines()]
        return {path.decode(): digest for path, _, digest in lines}
    command = ["dpkg-deb", "--fsys-tarfile", package]
    done = subprocess.run(command, capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        files = {entry.name.removeprefix("."): archive.extractfile(entry) for entry in archive}
    return {path: file.read() for path, file in files.items() if file is not None}


@pytest.mark.parametrize("kind", ["rpm", "deb"])
def test_builds_in_two_places_hold_the_same_but_what_was_changed(
    kind: str, first: Built, second: Built
) -> None:
    changed = {
        path
        for name in NAMES
        for one, other in [[contents(getattr(each, kind)[name]) for each in (first, second)]]
        for path in one.keys() | other.keys()
        if one.get(path) != other.get(path)
    }
    stable = {
        path
        for path in changed
        if "changelog.Debian" not in path and "/ccagent_collectors-" not in path
    }
    assert {re.sub(r"/__pycache__/(\w+)[.\w-]*$", r"/\1.py", path) for path in stable} == {
        "/usr/lib/ccagent/ccagent/__init__.py",
        "/usr/lib/ccagent/ccagent/config/configuration.py",
        "/usr/share/ccagent/examples/ccagent.toml",
        "/usr/share/man/man1/ccagent.1.gz",
        "/usr/share/man/man5/ccagent.toml.5.gz",
    }


def test_a_package_needs_and_offers_nothing_of_python_s_modules(first: Built) -> None:
    for name in (*NAMES, *STORES):
        told = subprocess.run(
            ["rpm", "-qp", "--requires", "--provides", first.rpm[name]],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        foreign = [
            line for line in told.splitlines()
            if not line.startswith(
                ("ccagent", "libgcc", "libstdc++", "bundled(", "config(", "rpmlib(", "/bin/sh",
                 "(/usr/bin/", "(ccagent-")
            )
        ]  # fmt: skip
        assert foreign == []


@pytest.mark.parametrize(
    ("package", "listed"),
    [
        ("ccagent-core", "wheels.txt"),
        ("ccagent-store", "wheels-store.txt"),
        ("ccagent-web", "wheels-web.txt"),
    ],
)
def test_bundled_modules_are_declared_with_version_and_licence(
    package: str, listed: str, first: Built, tree: Path
) -> None:
    lines = (ROOT / "packaging" / listed).read_text().splitlines()
    wheels = dict(line.split()[0].split("==") for line in lines if "==" in line)
    wheels.pop("setuptools", None)  # builds, and is not installed
    command: list[str | Path] = ["rpm", "-qp", "--provides", first.rpm[package]]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    bundled = re.findall(r"^bundled\(python3dist\((.*)\)\) = (.*)$", told, re.MULTILINE)
    assert dict(bundled) == wheels
    place = f"/usr/share/licenses/{package}/"
    licences = [p for p in contents(first.rpm[package]) if p.startswith(place)]
    named = {path.removeprefix(place).split("/")[0].replace("_", "-") for path in licences}
    assert named == {*wheels, "LICENSE"}
    copyright_ = (tree / f"usr/share/doc/{package}/copyright").read_text()
    assert set(re.findall(r"^Comment: (\S+)$", copyright_, re.MULTILINE)) == set(wheels)
    licences = re.findall(r"^License: (\S+)$", copyright_, re.MULTILINE)
    assert set(licences) == set(re.findall(r"^License: (\S+)\n ", copyright_, re.MULTILINE))


def test_the_launcher_takes_the_newest_python_that_it_has_bytecode_for(
    installed: Installed,
) -> None:
    root = installed(rpm_install, *NODE)
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


def test_the_launcher_says_when_there_is_no_python(installed: Installed) -> None:
    root = installed(rpm_install, *NODE)
    python = root.path / "usr/bin/python3.11"
    python.rename(python.with_name("python3"))
    assert "Usage: ccagent" in root.run("ccagent", "--help")
    old = python.with_name("python3")
    old.unlink()
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    assert "install python3.11" in root.run("ccagent", "--help", expect=127)
    old.unlink()
    assert "install python3.11" in root.run("ccagent", "--help", expect=127)


def test_nothing_around_it_changes_what_is_run(installed: Installed) -> None:
    root = installed(rpm_install, *NODE)
    stranger = root.path / "tmp/click.py"
    stranger.write_text("raise SystemExit('not this one')\n")
    told = root.run("env", "-C", "/tmp", "ccagent", "--help", PYTHONPATH="/tmp", PYTHONHOME="/tmp")
    assert "Usage: ccagent" in told
    added = root.path / "usr/local/lib/ccagent"
    added.mkdir(parents=True)
    shutil.copy(stranger, added)
    (added / "extra.py").write_text("")
    assert "Usage: ccagent" in root.run("ccagent", "--help")


def test_what_the_program_generates_is_packed(tree: Path) -> None:
    for name in (
        "man/man1/ccagent.1.gz",
        "man/man5/ccagent.toml.5.gz",
        "bash-completion/completions/ccagent",
        "zsh/site-functions/_ccagent",
        "fish/vendor_completions.d/ccagent.fish",
        "ccagent/examples/compute-node-nats.toml",
    ):
        assert (tree / "usr/share" / name).stat().st_size > 100
    assert "#cluster = " in (tree / "usr/share/ccagent/examples/ccagent.toml").read_text()


def test_the_configuration_file_is_small_and_leaves_all_to_the_defaults(tree: Path) -> None:
    text = (tree / CONFIGURATION[1:]).read_text()
    assert tomllib.loads(text) == {}
    assert len(text) < 2000


def test_documents_are_installed_and_their_links_work(tree: Path) -> None:
    home = tree / "usr/share/doc/ccagent-core"
    assert (home / "agents/metrics/metrics.md").exists()
    documents = list(home.rglob("*.md"))
    broken = [
        (document.name, str(file))
        for document in documents
        for file, _ in links(document)
        if not file.exists()
    ]
    assert broken == []
    assert len(documents) > 20


def test_debian_s_package_ships_no_bytecode(first: Built) -> None:
    paths = {**contents(first.deb["ccagent-core"]), **contents(first.deb["ccagent-store"])}
    assert [path for path in paths if "__pycache__" in path or path.endswith(".pyc")] == []


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
    extras = project["optional-dependencies"]
    # What these need in turn: cryptography two more, starlette and uvicorn four, jinja2 one.
    for listed, needed, more in (
        ("wheels.txt", project["dependencies"], {"setuptools"}),
        ("wheels-store.txt", extras["metrics-store"], {"cffi", "pycparser"}),
        (
            "wheels-web.txt",
            [each for each in extras["web"] if not each.startswith("ccagent")],
            {"anyio", "bokeh", "h11", "idna", "typing-extensions", "markupsafe"},
        ),
    ):
        wanted = {re.split("[<>=]", each)[0] for each in needed}
        lines = (ROOT / "packaging" / listed).read_text().splitlines()
        assert {line.partition("==")[0] for line in lines if "==" in line} == wanted | more


def test_the_program_alone_names_the_package_of_other_commands(
    installed: Installed, first: Built
) -> None:
    root = installed(deb_install, *NODE)
    for command, package in (
        (("store", "metrics"), "ccagent-store"),
        (("jobstats", "top"), "ccagent-store"),
        (("try",), "ccagent-web"),
    ):
        told = root.run("ccagent", *command, expect=2)
        assert told == f"ccagent: this command is in the package {package}\n"
    assert "does not run on this node" in root.run("ccagent", "job", "1", expect=1)
    deb_install(root, first, ("ccagent-store",))
    told = root.run("ccagent", "store", "metrics", "--web", expect=2)
    assert told.endswith("the pages are in the package ccagent-web\n")


def installed_size(package: Path, *, is_library: bool) -> int:
    """The bytes of a package's files, of the libraries of others or of everything else."""
    command: list[str | Path] = ["dpkg-deb", "--fsys-tarfile", package]
    done = subprocess.run(command, capture_output=True, check=True)
    own = re.compile(r"\./usr/lib/ccagent/(ccagent|bytecode|__main__)|\./(?!usr/lib/ccagent[/-])")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        return sum(each.size for each in archive if is_library is (own.match(each.name) is None))


def test_the_document_has_the_sizes_of_the_packages(first: Built) -> None:
    """The tests compress less, so the sizes of the packages themselves are only bounds."""
    text = (ROOT / "packaging/README.md").read_text()
    rows = re.findall(
        r"^\| `(ccagent-\w+)` \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", text, re.MULTILINE
    )
    assert {row[0] for row in rows} == {"ccagent-core", *STORES}
    for name, packed, own, libraries in rows:
        package = first.deb[name]
        for told, is_library in ((own, False), (libraries, True)):
            found = installed_size(package, is_library=is_library) / 1e6
            assert float(told) == pytest.approx(found, rel=0.1, abs=0.06), (name, is_library)
        assert float(packed) < package.stat().st_size / 1e6
    assert installed_size(first.deb["ccagent-core"], is_library=False) < 5e6


def test_linters_find_only_what_has_a_reason(first: Built, tmp_path: Path) -> None:
    readme = (ROOT / "packaging/README.md").read_text()
    table = readme.partition("| tag | of | reason |")[2].partition("\n\n")[0]
    reasons = {
        tag: tool
        for row in table.splitlines()[2:]
        for tags, tool in [row.split("|")[1:3]]
        for tag in re.findall(r"`([\w-]+)`", tags)
    }
    filters = ROOT / "packaging/rpm/ccagent-core.rpmlintrc"
    source = next(first.rpm["ccagent-core"].parent.glob("*.src.rpm"))
    done = subprocess.run(
        ["rpmlint", "--rpmlintrc", filters, *(first.rpm[name] for name in LINTED), source],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    complaints = re.findall(r"^.*: [EW]: .*$", done.stdout, re.MULTILINE)
    unused = [each for each in complaints if "unused-rpmlintrc-filter" in each]
    assert complaints == ([] if IS_NIGHTLY else unused), done.stdout  # some are for the store alone
    assert f"{len(LINTED) + 1} packages and 0 specfiles checked; " in done.stdout, done.stdout
    listed = set(re.findall(r'^addFilter\("([\w-]+\w)', filters.read_text(), re.MULTILINE))
    for overrides in (ROOT / "packaging/deb").glob("*.lintian-overrides"):
        found = re.findall(r"^ccagent-\w+: ([\w-]+)", overrides.read_text(), re.MULTILINE)
        listed |= set(found)
    done = subprocess.run(
        ["lintian", "--allow-root", *(first.deb[name] for name in LINTED)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    remaining = set(re.findall(r"^[EW]: [\w-]+: ([\w-]+)", done.stdout, re.MULTILINE))
    assert remaining == {"initial-upload-closes-no-bugs"}
    assert listed | remaining == set(reasons)
