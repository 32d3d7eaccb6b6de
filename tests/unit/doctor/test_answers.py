"""Results of checks, by what programs, libraries and sinks answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ccagent.agents.lustre.jobstats.setup import assess_targets
from ccagent.doctor.sinks import assess_sink
from ccagent.errors import (
    CcagentError,
    NotHereError,
    NotPermittedError,
    ProgramError,
    RejectedError,
)
from ccagent.machine.checks import CheckResult
from ccagent.machine.interpreter import install_command
from ccagent.machine.requirements import (
    assess_cards,
    assess_program,
    find_area,
    require_program,
)
from ccagent.transports.base import ProbeResult
from tests.support.tree import TreeNode

FATAL = "sinfo: exit status 1: sinfo: error: lookup failed\nsinfo: fatal: No configuration source"


@pytest.mark.parametrize(
    ("outcome", "state", "said"),
    [
        ("slurm 25.05.1", "good", "slurm 25.05.1"),
        (NotHereError("sinfo: no such program"), "missing", "sinfo: no such program"),
        (NotPermittedError("sinfo: not permitted to run it"), "problem", "sinfo: not permitted"),
        (ProgramError(FATAL), "problem", "sinfo: fatal: No configuration source"),
        (ProgramError("sinfo: not finished after 5 s"), "problem", "sinfo: not finished after 5 s"),
        (ProgramError(""), "problem", ""),
        (ProgramError("x" * 5000), "problem", "x" * 240),
    ],
)
def test_programs(outcome: str | CcagentError, state: str, said: str) -> None:
    result = assess_program("slurm", outcome)
    assert result.state == state
    assert result.found.startswith(said)
    assert len(result.found) <= 240
    assert bool(result.fix) == (state != "good")


def test_a_program_of_no_known_kind_is_looked_for_only(tmp_path: Path) -> None:
    node = TreeNode(tmp_path)
    there = require_program(node, "/bin/sh").find()
    missing = require_program(node, "no-such-program").find()
    assert there == CheckResult("good", "/bin/sh")
    assert missing is not None
    assert (missing.state, missing.found) == ("missing", "no-such-program: no such program")


@pytest.mark.parametrize(
    ("program", "area"),
    [
        ("sacct", "slurm"),
        ("/opt/slurm/bin/scontrol", "slurm"),
        ("lstopo-no-graphics", "topology"),
        ("/usr/sbin/lctl", "lustre"),
        ("mpirun", "programs"),
        ("", "programs"),
    ],
)
def test_areas_of_programs(program: str, area: str) -> None:
    assert find_area(program) == area


@pytest.mark.parametrize(
    ("cards", "state", "said"),
    [
        ({}, "missing", "none"),
        ({"package": "amdsmi"}, "missing", "its Python package amdsmi is missing too"),
        ({"on_bus": ["0000:0e:00.0"]}, "problem", "no driver has any"),
        (
            {"driven": ["a", "b"], "reported": ["H100"]},
            "problem",
            "2 by the driver, 1 by its library",
        ),
        ({"driven": ["a", "b"], "reported": ["H100", "H100"]}, "good", "2: H100"),
        # Instances of partitioned cards are told besides them.
        ({"driven": ["a"], "reported": ["H100", "H100 MIG 1g.10gb"]}, "good", "1: H100, H100 MIG"),
        ({"driven": ["a"], "errors": ["NVML: mismatch"]}, "problem", "1 by the driver; NVML: mis"),
    ],
)
def test_cards(cards: dict[str, Any], state: str, said: str) -> None:
    finding = assess_cards(**cards)
    assert finding.state == state
    assert said in finding.found


def test_a_library_without_its_package_is_told_how_to_get_it() -> None:
    finding = assess_cards(driven=["a"], errors=["AMD SMI: no amdsmi"], package="amdsmi")
    assert finding.fix == f"install its Python package: {install_command('amdsmi')}"


def test_targets() -> None:
    many = [f"fs-OST{number:04x}" for number in range(10)]
    assert assess_targets(many, []).found.endswith("fs-OST0007 and 2 more")
    finding = assess_targets(["fs-OST0000"], ["lctl: not permitted to run it"])
    assert (finding.state, finding.found) == ("problem", "1; lctl: not permitted to run it")


@pytest.mark.parametrize(
    ("outcome", "state", "said", "advised"),
    [
        (ProbeResult("it accepts the login"), "good", "nats://host: it accepts the login", ""),
        (None, "good", "nats://host: not tried", "--deliver"),
        (ProgramError("not finished after 20 s"), "problem", "nats://host: not fin", "firewalls"),
        (
            RejectedError("nats://host: 403 Forbidden: the login is refused"),
            "problem",
            "403",
            "user",
        ),
        (
            RejectedError("nats://host: something new"),
            "problem",
            "something new",
            "the receiver's answer",
        ),
    ],
)
def test_sinks(
    outcome: ProbeResult | CcagentError | None, state: str, said: str, advised: str
) -> None:
    finding = assess_sink("a", "nats://host", outcome)
    assert finding.state == state
    assert said in finding.found
    assert advised in finding.fix
    assert finding.stops == ([] if state == "good" else ["sink a"])
