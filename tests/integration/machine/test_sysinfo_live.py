"""sysinfo on the machine that runs the tests, against lscpu (util-linux) and hwloc."""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import subprocess
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from ccagent.agents.sysinfo.agent import SysinfoAgent, SysinfoSettings
from ccagent.config.files import convert
from ccagent.errors import NotHereError
from ccagent.log import logger
from ccagent.machine.cpus import ask_py_cpuinfo
from ccagent.machine.node import Node
from ccagent.records.encoding import encode
from tests.support.paths import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence

CHECKER: Any = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))


def sampled(table: dict[str, object], node: Node | None = None) -> dict[str, Any]:
    """The attributes of this machine as they are sent; they fit the schema."""
    node = node or Node(hostname="n1", cluster="c1")
    configured = convert(table, SysinfoSettings, "agents.sysinfo", place="test")
    (message,) = encode(SysinfoAgent(configured, frozenset({"sonar"})).sample(node), "sonar", node)
    envelope = json.loads(message.body)
    CHECKER.validate(envelope)
    attributes: dict[str, Any] = envelope["data"]["attributes"]
    return attributes


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logger.library(), "propagate", True)
    caplog.set_level(logging.WARNING, logger.name)
    return caplog


def test_cpus_are_those_of_lscpu() -> None:
    lines = output("lscpu", "--parse=CPU,CORE,SOCKET").splitlines()
    cpus = [line.split(",") for line in lines if not line.startswith("#")]
    threads = Counter((socket, core) for _, core, socket in cpus)
    cores = Counter(socket for socket, _ in threads)
    attributes = sampled({})
    assert attributes["sockets"] == len(cores)
    assert attributes["cores_per_socket"] == max(cores.values())
    assert attributes["threads_per_core"] == max(threads.values())


def test_the_rest_is_what_the_system_says() -> None:
    attributes = sampled({})
    assert [attributes[name] for name in ("os_name", "os_release", "architecture")] == (
        output("uname", "-s", "-r", "-m").split()
    )
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 1024
    assert attributes["memory"] == pytest.approx(pages, rel=0.01)
    assert attributes["cpu_model"]
    listed = output("lscpu", "--parse=NODE").splitlines()
    nodes = {line for line in listed if line and not line.startswith("#")}
    assert attributes.get("numa_nodes", 0) >= len(nodes)


def test_py_cpuinfo_names_the_model_too() -> None:
    assert ask_py_cpuinfo(Node()) != ""


class Sandbox(Node):
    """The live machine, whose files and programs are all hidden."""

    def open(self, path: str, *, waits: bool = False) -> int:
        raise NotHereError(f"/{path}: hidden")

    def list(self, path: str) -> list[str]:
        raise NotHereError(f"/{path}: hidden")

    def run(self, command: Sequence[str], **_: object) -> bytes:
        raise NotHereError(f"{command[0]}: hidden")


def test_without_proc_and_sys_the_c_library_is_asked() -> None:
    attributes = sampled({}, Sandbox(hostname="n1", cluster="c1"))
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 1024
    assert attributes["cores_per_socket"] == os.cpu_count()
    assert attributes["memory"] == pages
    assert attributes["cpu_model"] == "unknown"
    assert attributes["numa_nodes"] == 0


def test_hwloc_draws_the_machine() -> None:
    attributes = sampled(
        {
            "topo-svg-command": "lstopo-no-graphics --of svg",
            "topo-text-command": "lstopo-no-graphics --of console",
        }
    )
    svg = base64.b64decode(attributes["topo_svg"], validate=True).decode()
    assert svg.startswith("<?xml")
    assert svg.rstrip().endswith("</svg>")
    assert "class='Machine'" in svg
    text = base64.b64decode(attributes["topo_text"], validate=True).decode()
    assert text.startswith("Machine (")
    cores = set(re.findall(r"Core L#\d+", text))
    assert len(cores) <= attributes["sockets"] * attributes["cores_per_socket"]
    assert cores


def test_hwloc_ls_is_understood_too() -> None:
    attributes = sampled({"topo-text-command": "hwloc-ls --of console"})
    assert base64.b64decode(attributes["topo_text"]).startswith(b"Machine (")


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"topo-svg-command": "sleep 30", "topo-time-limit": "200ms"}, "not finished after 0.2 s"),
        ({"topo-svg-command": "lstopo-no-graphics --of svg", "topo-size-limit": 100},
         "printed more than 100 bytes"),
        ({"topo-svg-command": "head -c 3000000 /dev/zero"}, "printed more than 2097152 bytes"),
        ({"topo-svg-command": "lstopo-no-graphics --of no-such-format"}, "exit status"),
        ({"topo-svg-command": "no-such-program-of-ccagent"}, "no such program"),
    ],
)  # fmt: skip
def test_a_command_that_goes_wrong_costs_its_field_only(
    keys: dict[str, object], reason: str, log: pytest.LogCaptureFixture
) -> None:
    begun = time.monotonic()
    attributes = sampled(keys)
    assert time.monotonic() - begun < 25
    assert "topo_svg" not in attributes
    assert attributes["sockets"] >= 1
    assert [reason in record.getMessage() for record in log.records] == [True]


def test_software_of_this_machine() -> None:
    bash = {"key": "bash", "name": "GNU Bash", "command": "bash --version"}
    kernel = {"key": "kernel", "file": "/proc/sys/kernel/osrelease"}
    attributes = sampled({"extras": ["software"], "software": [bash, kernel]})
    found = {entry["key"]: entry["version"] for entry in attributes["software"]}
    assert found["bash"] == output("bash", "--version").splitlines()[0].strip()
    assert found["kernel"] == os.uname().release


def test_a_sample_takes_milliseconds() -> None:
    sampled({})
    durations: list[float] = []
    node = Node(hostname="n1", cluster="c1")
    agent = SysinfoAgent(SysinfoSettings(), frozenset({"sonar"}))
    for _ in range(5):
        begun = time.perf_counter()
        list(agent.sample(node))
        durations.append(time.perf_counter() - begun)
    # Twenty times what it takes with a few cpus: machines that test are slow and busy.
    assert min(durations) < 0.005 + 0.0005 * (os.cpu_count() or 1)
