"""The agent sysinfo on trees of files: one envelope, whatever they hold; versions of software."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.sysinfo.agent import (
    SoftwareSettings,
    SysinfoAgent,
    SysinfoSettings,
    make_version,
    parse_component,
    parse_cuda,
    parse_first_line,
    parse_rocm_file_name,
    read_drawing,
    read_memory,
    read_software,
    split_command,
)
from ccagent.config.configuration import check
from ccagent.config.defaults import defaults
from ccagent.config.files import convert
from ccagent.errors import (
    CcagentError,
    ConfigurationError,
    NotHereError,
    ProgramError,
    UnparsableError,
)
from ccagent.log import logger
from ccagent.machine.clock import Clock
from ccagent.machine.node import Node
from ccagent.records.encoding import encode
from ccagent.records.envelopes import SysinfoSoftwareVersion
from tests.support.paths import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

CHECKER: Any = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))
CPUS = "sys/devices/system/cpu"
NODES = "sys/devices/system/node"

MACHINE = {
    "proc/meminfo": "MemTotal:       527988216 kB\nMemFree:        1 kB\n",
    "proc/cpuinfo": "processor\t: 0\ncpu\t: POWER9 (raw), altivec supported\n\nmodel\t: 8335-GTH\n",
    "proc/sys/kernel/ostype": "Linux\n",
    "proc/sys/kernel/osrelease": "4.18.0-553.el8.ppc64le\n",
    "proc/sys/kernel/arch": "ppc64le\n",
    # Two threads of each core are offline, and all of socket 8 but one core.
    f"{CPUS}/online": "0-1,4-5,64-65\n",
    f"{CPUS}/cpu0/topology/physical_package_id": "0\n",
    f"{CPUS}/cpu0/topology/thread_siblings_list": "0-3\n",
    f"{CPUS}/cpu4/topology/physical_package_id": "0\n",
    f"{CPUS}/cpu4/topology/thread_siblings_list": "4-7\n",
    f"{CPUS}/cpu64/topology/physical_package_id": "8\n",
    f"{CPUS}/cpu64/topology/thread_siblings_list": "64-67\n",
    f"{NODES}/node8/distance": "40 10\n",
    f"{NODES}/node0/distance": "10 40\n",
    "opt/rocm/.info/version": "6.4.0-47\n",
}
CUDA = {
    "cuda": {"name": "CUDA SDK", "version": "12.2.20230823"},
    "nvidia_driver": {"name": "NVIDIA Linux Driver", "version": "535.104.05"},
}


class Noon(Clock):
    def time(self) -> float:
        return 1_780_000_000.25


def tree(root: str | Path, files: Mapping[str, bytes | str]) -> Node:
    for path, content in files.items():
        place = Path(root) / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.encode() if isinstance(content, str) else content)
    return Node(root=str(root), hostname="n1", cluster="c1", clock=Noon())


def sampled(node: Node, *, extras: Sequence[str] = (), **keys: object) -> dict[str, Any]:
    """The attributes of the one envelope, as they are sent; they fit the schema."""
    table = {"extras": list(extras), **{key.replace("_", "-"): v for key, v in keys.items()}}
    configured = convert(table, SysinfoSettings, "agents.sysinfo", place="test")
    agent = SysinfoAgent(configured, frozenset({"sonar"}))
    (message,) = encode(agent.sample(node), "sonar", node)
    assert message.kind == "sysinfo"
    envelope = json.loads(message.body)
    CHECKER.validate(envelope)
    attributes: dict[str, Any] = envelope["data"]["attributes"]
    return attributes


@pytest.fixture
def log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logger.library(), "propagate", True)
    caplog.set_level(logging.DEBUG, logger.name)
    return caplog


def said(log: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in log.records if record.levelno == level]


def test_a_machine_with_sparse_numbers_and_offline_cpus(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    attributes = sampled(tree(tmp_path, MACHINE))
    time = attributes.pop("time")
    assert time.startswith("2026-05-2")
    assert attributes == {
        "cluster": "c1",
        "node": "n1",
        "os_name": "Linux",
        "os_release": "4.18.0-553.el8.ppc64le",
        "architecture": "ppc64le",
        "sockets": 2,
        "cores_per_socket": 2,
        "threads_per_core": 2,
        "cpu_model": "POWER9 (raw)",
        "memory": 527988216,
        "numa_nodes": 2,
        "distances": [[10, 40], [40, 10]],
    }
    assert said(log, logging.WARNING) == []


def test_an_empty_recording_is_one_cpu_and_one_kb(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    attributes = sampled(tree(tmp_path, {}))
    del attributes["time"]
    assert attributes == {
        "cluster": "c1",
        "node": "n1",
        "os_name": "unknown",
        "os_release": "unknown",
        "architecture": "unknown",
        "sockets": 1,
        "cores_per_socket": 1,
        "threads_per_core": 1,
        "memory": 1,
        # Jobanalyzer refuses what has none.
        "cpu_model": "unknown",
        "numa_nodes": 0,
    }
    assert said(log, logging.WARNING) == []
    assert any("/proc/meminfo" in text for text in said(log, logging.DEBUG))


def test_what_can_not_be_understood_is_logged_and_left_out(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    broken = {
        "proc/meminfo": "MemTotal: lots\n",
        f"{CPUS}/online": "0-99999999999\n",
        f"{NODES}/node8/distance": "40\n",
    }
    attributes = sampled(tree(tmp_path, MACHINE | broken))
    assert (attributes["sockets"], attributes["memory"], attributes["numa_nodes"]) == (1, 1, 2)
    assert "distances" not in attributes
    warnings = said(log, logging.WARNING)
    assert len(warnings) == 3
    for path in (f"/{CPUS}/online", f"/{NODES}", "/proc/meminfo"):
        assert any(text.startswith(f"sysinfo: {path}: ") for text in warnings)


def test_no_total_in_meminfo_is_said(tmp_path: Path) -> None:
    errors: list[CcagentError] = []
    assert read_memory(tree(tmp_path, {"proc/meminfo": "MemFree: 1 kB\n"}), errors) == 1
    assert [str(error) for error in errors] == ["/proc/meminfo: no MemTotal"]


def test_software_is_sent_only_on_demand(tmp_path: Path) -> None:
    node = tree(tmp_path, MACHINE)
    package = {"key": "os", "file": "/proc/sys/kernel/osrelease"}
    assert "software" not in sampled(node, software=[package])
    assert sampled(node, extras=["software"], software=[package])["software"] == [
        {"key": "os", "version": "4.18.0-553.el8.ppc64le"},
        {"key": "rocm", "version": "6.4.0-47", "name": "ROCm"},
    ]


def test_a_recording_never_asks_the_machine_it_is_read_on(tmp_path: Path) -> None:
    class Deaf(Node):
        def run(self, *_: object, **__: object) -> bytes:
            raise AssertionError("a program was started")

    sampled(Deaf(root=str(tmp_path), hostname="n1", cluster="c1"), extras=["software"])


PATHS = [
    *(path for path in MACHINE if not path.startswith("opt")),
    f"{CPUS}/cpu1/topology/core_cpus_list",
    "opt/rocm/.info/version",
    "opt/rocm/.info/version-hip-libraries",
    "usr/local/cuda/version.json",
]


@pytest.mark.slow
@given(
    st.dictionaries(
        st.sampled_from(PATHS),
        st.binary(max_size=80) | st.text('0123456789-, :\nMemTotalprocessor{}"').map(str.encode),
    )
)
def test_no_content_of_a_file_makes_it_fail(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as root:
        attributes = sampled(tree(root, {**MACHINE, **files}), extras=["software"])
    for name in ("sockets", "cores_per_socket", "threads_per_core", "memory"):
        assert attributes[name] >= 1


@pytest.mark.parametrize("path", PATHS)
def test_a_directory_in_place_of_a_file_does_not_make_it_fail(tmp_path: Path, path: str) -> None:
    node = tree(tmp_path, {name: text for name, text in MACHINE.items() if name != path})
    (tmp_path / path).mkdir(parents=True)
    assert sampled(node, extras=["software"])["sockets"] >= 1


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"topo-svg-command": "lstopo '"}, "topo-svg-command: \"lstopo '\" can't be split"),
        ({"topo-text-command": "\0"}, "topo-text-command: can't hold the character NUL"),
        ({"rocm-root": "/opt/\0"}, "rocm-root: can't hold the character NUL"),
        ({"topo-size-limit": 0}, "agents.sysinfo.topo-size-limit: expected a whole number >= 1"),
        ({"topo-time-limit": "soon"}, "agents.sysinfo.topo-time-limit: 'soon' is not a duration"),
        ({"software": [{"key": "r"}]}, "software[0]: 'r' needs either 'command' or 'file'"),
        ({"software": [{"key": "r", "file": "a", "command": "b"}]}, "'r' needs either"),
        ({"software": [{"key": "r", "file": "\0"}]}, "software.file: can't hold the character NUL"),
        ({"software": [{"key": "r", "command": "R '"}]}, "\"R '\" can't be split into words"),
        ({"software": [{"file": "/r"}]}, "software[0].key: missing"),
        ({"software": [{"key": "", "file": "/r"}]}, "agents.sysinfo.software[0].key"),
        ({"extras": ["softwares"]}, "agents.sysinfo.extras: 'softwares' is unknown"),
        ({"topo-svg": "lstopo"}, "did you mean 'topo-svg-command'"),
    ],
)
def test_settings_are_checked_before_anything_runs(table: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check({"agents": {"sysinfo": table}}, "ccagent.toml")
    assert str(caught.value).startswith("ccagent.toml: agents.sysinfo")
    assert reason in str(caught.value)


def test_the_daemon_samples_at_once_by_default() -> None:
    assert SysinfoSettings().on_startup
    text = defaults().partition("[agents.sysinfo]")[2].partition("\n[")[0] + "\n"
    for line in (
        "on-startup = true",
        'topo-svg-command = ""',
        'topo-text-command = ""',
        'topo-time-limit = "10s"',
        "topo-size-limit = 2097152",
        "software = []",
        'cuda-root = "/usr/local/cuda"',
        'rocm-root = "/opt/rocm"',
        'software-time-limit = "5s"',
    ):
        assert f"\n{line}\n" in text


def software(
    node: Node, errors: list[CcagentError], *configured: SoftwareSettings
) -> dict[str, tuple[str, str]]:
    """What is found: name and version by key."""
    found = read_software(
        node,
        configured,
        cuda_root="/usr/local/cuda",
        rocm_root="/opt/rocm/",
        time_limit=5.0,
        errors=errors,
    )
    return {entry.key: (entry.name, entry.version) for entry in found}


def absent(errors: list[CcagentError]) -> bool:
    return all(isinstance(error, NotHereError) for error in errors)


def test_cuda_names_its_components(tmp_path: Path) -> None:
    errors: list[CcagentError] = []
    node = tree(tmp_path, {"usr/local/cuda/version.json": json.dumps(CUDA)})
    assert software(node, errors) == {
        "cuda": ("CUDA SDK", "12.2.20230823"),
        "nvidia_driver": ("NVIDIA Linux Driver", "535.104.05"),
    }
    assert absent(errors)


def test_a_bad_component_of_cuda_is_left_out(tmp_path: Path) -> None:
    errors: list[CcagentError] = []
    components = {
        "nameless": {"version": "1"},
        "empty": {"name": "x", "version": " "},
        "text": "12.2",
        "number": {"name": "x", "version": 12.2},
        "": {"name": "x", "version": "1"},
        "bell": {"name": "x", "version": "1\a"},
        "unprintable name": {"name": "\x1b[2J", "version": "2"},
        "newer": {"name": "x", "version": "3", "date": {"year": 2026}},
    }
    node = tree(tmp_path, {"usr/local/cuda/version.json": json.dumps(components)})
    assert software(node, errors) == {
        "nameless": ("", "1"),
        "unprintable name": ("", "2"),
        "newer": ("x", "3"),
    }
    complaints = [str(error) for error in errors if isinstance(error, UnparsableError)]
    assert len(complaints) == 5
    assert all(text.startswith("/usr/local/cuda/version.json: ") for text in complaints)


@pytest.mark.parametrize("text", ["", "[]", "{", '"12.2"', "{" * 100_000, '{"a":' + "[" * 100_000])
def test_a_version_json_that_is_no_object_gives_nothing(tmp_path: Path, text: str) -> None:
    errors: list[CcagentError] = []
    node = tree(tmp_path, {"usr/local/cuda/version.json": text})
    assert software(node, errors) == {}
    assert [type(error) for error in errors] == [UnparsableError, NotHereError]
    assert str(errors[0]).startswith("/usr/local/cuda/version.json: ")


@given(st.binary() | st.text().map(str.encode))
def test_cuda_is_understood_or_unparsable(content: bytes) -> None:
    try:
        components = parse_cuda(content)
    except UnparsableError:
        return
    for key, component in components.items():
        with contextlib.suppress(UnparsableError):
            assert parse_component(key, component).key


@given(st.text(), st.recursive(st.none() | st.text() | st.integers(), lambda inner: (
    st.lists(inner) | st.dictionaries(st.sampled_from(["name", "version", "x"]), inner)
)))  # fmt: skip
def test_a_component_is_understood_or_unparsable(key: str, component: object) -> None:
    try:
        entry = parse_component(key, msgspec.Raw(json.dumps(component).encode()))
    except UnparsableError:
        return
    assert entry.key.isprintable()
    assert entry.version
    assert entry.version.isprintable()
    assert entry.name.isprintable()


@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("version", "rocm"),
        (".version", "rocm"),
        ("version-hip-libraries", "hip-libraries"),
        ("version-", ""),
        ("versions", ""),
        ("conversion", ""),
        ("", ""),
    ],
)
def test_files_of_rocm_are_named_after_components(file: str, key: str) -> None:
    assert parse_rocm_file_name(file) == key


def test_rocm_has_a_file_a_component(tmp_path: Path) -> None:
    errors: list[CcagentError] = []
    files = {
        "opt/rocm/.info/version": "6.4.0-47\n",
        "opt/rocm/.info/version-hip-libraries": "\n6.4.1-47\nbuilt by hand\n",
        "opt/rocm/.info/version-lrt": "\n",
        "opt/rocm/.info/README": "1\n",
        "opt/rocm/.info/version-directory/file": "1\n",
    }
    assert software(tree(tmp_path, files), errors) == {
        "rocm": ("ROCm", "6.4.0-47"),
        "hip-libraries": ("ROCm hip-libraries", "6.4.1-47"),
    }
    complaints = [str(error) for error in errors if not isinstance(error, NotHereError)]
    assert complaints == [
        "/opt/rocm/.info/version-directory: Is a directory",
        "software 'lrt': not a version: ''",
    ]


def test_configured_files_are_below_the_root(tmp_path: Path) -> None:
    errors: list[CcagentError] = []
    node = tree(tmp_path, {"etc/os-version": "\n  9.4 (Plow)  \nmore\n"})
    os_version = SoftwareSettings(key="os", name="Distribution", file="/etc/os-version")
    missing = SoftwareSettings(key="no", file="/etc/missing")
    assert software(node, errors, os_version, missing) == {"os": ("Distribution", "9.4 (Plow)")}
    assert absent(errors)


def test_configured_commands_print_versions(tmp_path: Path) -> None:
    errors: list[CcagentError] = []
    commands = {
        "ok": r"printf '\n  5.36.0  \nmore\n'",
        "silent": "true",
        "failing": "false",
        "missing": "no-such-program-of-ccagent --version",
        "binary": r"printf '\377\376'",
        "escape": r"printf '\033[2J1.0'",
    }
    entries = [SoftwareSettings(key=key, command=line) for key, line in commands.items()]
    found = software(Node(root=str(tmp_path)), errors, *entries)
    assert found == {"ok": ("", "5.36.0"), "binary": ("", "\ufffd\ufffd")}
    kinds = [type(error) for error in errors[:4]]
    assert kinds == [UnparsableError, ProgramError, NotHereError, UnparsableError]


def test_of_equal_keys_the_configured_one_counts_then_the_first(tmp_path: Path) -> None:
    files = {"usr/local/cuda/version.json": json.dumps(CUDA), "a": "1\n", "b": "2\n"}
    first, second = (SoftwareSettings(key="cuda", file=file) for file in "ab")
    assert software(tree(tmp_path, files), [], first, second)["cuda"] == ("", "1")


def test_an_empty_root_is_not_looked_at(tmp_path: Path) -> None:
    errors: list[CcagentError] = []
    node = tree(tmp_path, {"version.json": json.dumps(CUDA), ".info/version": "1\n"})
    found = read_software(node, (), cuda_root="", rocm_root="", time_limit=5.0, errors=errors)
    assert found == []
    assert errors == []


def test_long_texts_are_cut() -> None:
    entry = make_version("k" * 300, "n" * 300, " " + "v" * 300)
    assert entry == SysinfoSoftwareVersion(key="k" * 200, name="n" * 200, version="v" * 200)


@given(st.text(), st.text(), st.text())
def test_an_entry_is_printable_or_unparsable(key: str, name: str, version: str) -> None:
    try:
        entry = make_version(key, name, version)
    except UnparsableError:
        return
    for text in (entry.key, entry.name, entry.version):
        assert text.isprintable()
        assert len(text) <= 200
    assert entry.key
    assert entry.version


@given(st.binary())
def test_the_first_line_is_one_line(content: bytes) -> None:
    line = parse_first_line(content)
    assert line == line.strip()
    assert len(line.splitlines()) <= 1


def drawing(command: str, errors: list[CcagentError]) -> str:
    node = Node(hostname="n1", cluster="c1")
    return read_drawing(
        node, split_command(command), time_limit=5.0, size_limit=1000, errors=errors
    )


def test_a_command_is_split_as_a_shell_would_but_there_is_no_shell() -> None:
    assert split_command("lstopo --of 'an svg' $HOME") == ["lstopo", "--of", "an svg", "$HOME"]
    assert split_command(" ") == []


@given(st.text())
def test_a_command_is_split_or_refused(command: str) -> None:
    try:
        words = split_command(command)
    except ValueError:
        return
    assert all("\0" not in word for word in words)


def test_output_is_sent_in_standard_base64() -> None:
    errors: list[CcagentError] = []
    assert drawing(r"printf '\373\377\376a'", errors) == "+//+YQ=="
    assert base64.b64decode(drawing("printf <svg/>", errors), validate=True) == b"<svg/>"
    assert errors == []


@pytest.mark.parametrize("command", ["", "  ", "true"])
def test_without_a_command_or_output_there_is_no_drawing(command: str) -> None:
    errors: list[CcagentError] = []
    assert drawing(command, errors) == ""
    assert errors == []


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("no-such-program-of-ccagent", "no-such-program-of-ccagent: no such program"),
        ("sh -c 'echo half; echo no GPU >&2; exit 3'", "sh: exit status 3: no GPU"),
        ("head -c 1001 /dev/zero", "head: printed more than 1000 bytes"),
    ],
)
def test_a_command_that_fails_gives_no_drawing_and_a_reason(command: str, reason: str) -> None:
    errors: list[CcagentError] = []
    assert drawing(command, errors) == ""
    assert [(type(error), str(error)) for error in errors] == [(ProgramError, reason)]
