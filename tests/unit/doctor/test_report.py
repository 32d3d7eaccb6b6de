"""From findings to what is printed: impact, stops, exit status, time limits, text, JSON."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.doctor.examination import (
    GENERAL,
    choose_exit_status,
    examine,
    format_json,
    format_report,
    format_verdict,
    list_stopped,
    list_unconfigured,
)
from ccagent.doctor.finding import AgentCheck, Finding, Site, make_finding, run_all
from ccagent.errors import NotHereError, ProgramError
from ccagent.machine.checks import Check, CheckResult
from ccagent.registry import AGENTS
from tests.support.doctor_site import mounted, site, status
from tests.support.tree import TreeNode

ABSENT = CheckResult("missing", "none", "get it")
PRESENT = CheckResult("good", "25.05")
GOOD = Finding("slurm", "sacct", *PRESENT)
EACH = [name for name in AGENTS if name != "jobs"]


def need(
    agent: str, impact: str, *, vital: bool = False, configured: bool = True, subject: str = "sacct"
) -> AgentCheck:
    """Return a check of an agent."""
    return AgentCheck(agent, configured, Check("slurm", subject, lambda: None, impact, vital))


VITAL = need("jobs", "all of it", vital=True)
USEFUL = need("sample", "a little")
UNUSED = need("jobs", "all of it", vital=True, configured=False)
MISSING = make_finding([VITAL], ABSENT)


@pytest.fixture
def node(tmp_path: Path) -> TreeNode:
    node = TreeNode(tmp_path)
    node.write("self/status", status())
    node.write("self/mountinfo", mounted())
    return node


@pytest.mark.parametrize(
    ("result", "checks", "impact", "stops", "code"),
    [
        (ABSENT, [VITAL], ["jobs: all of it"], ["agent jobs"], 1),
        (ABSENT, [USEFUL], ["sample: a little"], [], 0),
        (ABSENT, [USEFUL, VITAL], ["sample: a little", "jobs: all of it"], ["agent jobs"], 1),
        (ABSENT, [VITAL, VITAL], ["jobs: all of it"], ["agent jobs"], 1),
        (ABSENT, [UNUSED], [], [], 0),
        (ABSENT, [need("sample", "")], [], [], 0),
        (PRESENT, [VITAL], [], [], 0),
    ],
)
def test_impact_of_a_lack_is_that_of_configured_agents(
    result: CheckResult, checks: list[AgentCheck], impact: list[str], stops: list[str], code: int
) -> None:
    finding = make_finding(checks, result)
    assert (finding.impact, finding.stops) == (impact, stops)
    assert choose_exit_status([GOOD, finding]) == code


def test_the_verdict_agrees_with_the_exit_status() -> None:
    problem = Finding(area="a", subject="io", state="problem", found="no", impact=["sample: io"])
    findings = [MISSING, problem]
    text = format_verdict(findings, ["jobs", "sample", "sysinfo"])
    assert text == ("not ready: cannot work: agent jobs; works with limits: sample; works: sysinfo")
    assert choose_exit_status(findings) == 1
    assert format_verdict([problem], ["sample"]) == "ready: works with limits: sample"
    assert choose_exit_status([problem]) == 0
    assert format_verdict([], ["log"]) == "ready: works: log"


def test_agents_that_are_not_configured_have_a_line_of_their_own() -> None:
    check = need("lustre", "all", vital=True, configured=False, subject="lctl")
    unused = make_finding([check], ABSENT)
    agents = [name for name in AGENTS if name not in {"lustre", "log"}]
    assert list_unconfigured([unused], agents) == "not configured: lustre (lacks lctl), log"
    text = format_report([GOOD, unused], agents)
    assert "missing" not in text
    assert text.splitlines()[-1] == "not configured: lustre (lacks lctl), log"
    assert json.loads(format_json([unused]))[0]["not_configured"] == ["lustre: all"]


def test_text_is_aligned_by_area() -> None:
    other = Finding(area="sinks", subject="sink backend", state="good", found="it answers")
    assert format_report([MISSING, other], list(AGENTS)).replace(", ".join(EACH), "...") == (
        "not ready: cannot work: agent jobs; works: ...\n"
        "\n"
        "slurm\n"
        "  missing  sacct         none\n"
        "                         impact: jobs: all of it\n"
        "                         stops:  agent jobs\n"
        "                         fix:    get it\n"
        "\n"
        "sinks\n"
        "  good     sink backend  it answers\n"
    )


def test_a_terminal_gets_colours_and_lines_that_fit() -> None:
    long = Finding(area="a", subject="b", state="problem", found="word " * 60)
    text = format_report([long], [], width=80)
    assert "\x1b[31mproblem\x1b[0m" in text
    plain = text.replace("\x1b[31m", "").replace("\x1b[0m", "").replace("\x1b[1m", "")
    assert max(map(len, plain.splitlines())) <= 80
    assert "\x1b" not in format_report([long], [])


@given(st.text(), st.text())
def test_nothing_that_is_found_begins_a_line_or_steers_a_terminal(subject: str, text: str) -> None:
    finding = Finding(area="a", subject=subject, state="good", found=text, fix=text)
    lines = format_report([finding], [text]).split("\n")
    assert all(line.isprintable() for line in lines)
    assert len(lines) <= 9
    (read,) = json.loads(format_json([finding]))
    assert (read["subject"], read["found"]) == (subject, text)


def test_json_has_all_fields_always() -> None:
    (read,) = json.loads(format_json([GOOD]))
    assert read == {
        "area": "slurm", "subject": "sacct", "state": "good", "found": "25.05",
        "impact": [], "stops": [], "fix": "", "not_configured": [],
        "costs": [], "advice": "",
    }  # fmt: skip


def test_names_of_files_that_are_no_utf_8() -> None:
    (read,) = json.loads(format_json([msgspec.structs.replace(GOOD, found="a\udcffb")]))
    assert read["found"] == "a?b"
    assert "a\\udcffb" in format_report([msgspec.structs.replace(GOOD, found="a\udcffb")], [])


def test_what_hangs_is_left_behind() -> None:
    released = threading.Event()

    def quick() -> str:
        return "quick"

    def hang() -> str:
        released.wait()
        return "late"

    def fail() -> str:
        raise NotHereError("no such thing")

    def break_() -> str:
        raise ZeroDivisionError("by nothing")

    begin = time.monotonic()
    done, hung, failed, broken = run_all([quick, hang, fail, break_], 0.3)
    assert time.monotonic() - begin < 2
    released.set()
    assert done == "quick"
    assert isinstance(hung, ProgramError)
    assert str(hung) == "not finished after 0.3 s"
    assert isinstance(failed, NotHereError)
    assert str(broken) == "ZeroDivisionError: by nothing"


@pytest.mark.slow
def test_a_file_that_hangs_costs_its_own_check_alone(node: TreeNode) -> None:
    is_over = node.hang("proc/sys/kernel/perf_event_paranoid")
    begin = time.monotonic()
    findings = examine(site(node), {"identity": GENERAL["identity"]}, 0.5)
    assert time.monotonic() - begin < 3
    is_over.set()
    states = {finding.subject: finding.state for finding in findings}
    assert states["hardware counters"] == "problem"
    assert states["user"] == "good"
    assert list_stopped(findings) == []


def test_a_check_that_fails_is_a_problem_of_its_subject(node: TreeNode) -> None:
    (node.path / "proc/self/status").unlink()
    (node.path / "proc/stat").unlink()
    findings = {finding.subject: finding for finding in examine(site(node), {})}
    assert findings["/proc"].stops == ["agent sample"]
    finding = findings["I/O of others"]
    assert finding.found.startswith("/proc/self/status: No such file")
    assert finding.impact == ["sample: what other users' processes read and write"]


def test_findings_before_a_general_check_fails_count(node: TreeNode) -> None:
    (node.path / "proc/self/status").unlink()
    one = Site(node, site(node).configuration, [])
    findings = {each.subject: each for each in examine(one, {"identity": GENERAL["identity"]})}
    assert findings["host name"].state == "good"
    assert findings["check of identity"].found.startswith("/proc/self/status: No such file")


def test_servers_are_asked_for_configured_agents_alone(node: TreeNode) -> None:
    asked: list[str] = []

    def ask(agent: str, *, configured: bool) -> AgentCheck:
        def find() -> CheckResult:
            asked.append(agent)
            return PRESENT

        return AgentCheck(agent, configured, Check("slurm", agent, find, "all", is_query=True))

    checks = [ask("jobs", configured=True), ask("cluster", configured=False)]
    examine(Site(node, site(node).configuration, checks), {})
    assert asked == ["jobs"]


def test_areas_come_in_their_order_and_unknown_ones_last(node: TreeNode) -> None:
    def check(_: Site) -> Iterator[Finding]:
        for area in ("sinks", "of a plugin", "identity"):
            yield Finding(area=area, subject=area, state="good", found="")

    findings = examine(Site(node, site(node).configuration, []), {"x": check})
    assert [finding.area for finding in findings] == ["identity", "sinks", "of a plugin"]
