"""From findings to what is printed: impact, stops, exit status, time limits, text, JSON."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.needs import Need
from ccagent.config.registry import AGENTS
from ccagent.doctor.demands import Demand, Site
from ccagent.doctor.examination import CHECKS, examine, stopped
from ccagent.doctor.finding import Finding, with_impact
from ccagent.doctor.processes import check_processes
from ccagent.doctor.report import as_json, exit_status, report, unconfigured, verdict
from ccagent.doctor.together import together
from ccagent.errors import NotHereError, ProgramError
from tests.support.doctor_site import mounted, site, status
from tests.support.tree import TreeNode

MISSING = Finding(area="slurm", subject="sacct", state="missing", found="none", fix="get it")
GOOD = Finding(area="slurm", subject="sacct", state="good", found="25.05")
VITAL = Demand("jobs", True, Need("sacct", "all of it", is_vital=True))
USEFUL = Demand("sample", True, Need("sacct", "a little"))
EACH = [name for name in AGENTS if name != "jobs"]
UNUSED = Demand("jobs", False, VITAL.need)


@pytest.fixture
def node(tmp_path: Path) -> TreeNode:
    node = TreeNode(tmp_path)
    node.write("self/status", status())
    node.write("self/mountinfo", mounted())
    return node


@pytest.mark.parametrize(
    ("finding", "demand", "impact", "stops", "code"),
    [
        (MISSING, VITAL, ["jobs: all of it"], ["agent jobs"], 1),
        (MISSING, USEFUL, ["sample: a little"], [], 0),
        (MISSING, UNUSED, [], [], 0),
        (MISSING, Demand("jobs", True, Need("sinfo", "all", is_vital=True)), [], [], 0),
        (GOOD, VITAL, [], [], 0),
    ],
)
def test_a_lack_has_the_impact_that_configured_agents_name(
    finding: Finding, demand: Demand, impact: list[str], stops: list[str], code: int
) -> None:
    costly = with_impact(finding, [demand])
    assert (costly.impact, costly.stops) == (impact, stops)
    assert exit_status([GOOD, costly]) == code


def test_the_verdict_agrees_with_the_exit_status() -> None:
    problem = Finding(area="a", subject="io", state="problem", found="no", impact=["sample: io"])
    findings = [with_impact(MISSING, [VITAL]), problem]
    text = verdict(findings, ["jobs", "sample", "sysinfo"])
    assert text == ("not ready: cannot work: agent jobs; works with limits: sample; works: sysinfo")
    assert exit_status(findings) == 1
    assert verdict([problem], ["sample"]) == "ready: works with limits: sample"
    assert exit_status([problem]) == 0
    assert verdict([], ["log"]) == "ready: works: log"


def test_agents_that_are_not_configured_have_a_line_of_their_own() -> None:
    lctl = Finding(area="lustre", subject="lctl", state="missing", found="none")
    unused = with_impact(lctl, [Demand("lustre", False, Need("lctl", "all", is_vital=True))])
    agents = [name for name in AGENTS if name not in {"lustre", "log"}]
    assert unconfigured([unused], agents) == "not configured: lustre (lacks lctl), log"
    text = report([GOOD, unused], agents)
    assert "missing" not in text
    assert text.splitlines()[-1] == "not configured: lustre (lacks lctl), log"
    assert json.loads(as_json([unused]))[0]["not_configured"] == ["lustre: all"]


def test_text_is_aligned_by_area() -> None:
    finding = with_impact(MISSING, [VITAL])
    other = Finding(area="sinks", subject="sink backend", state="good", found="it answers")
    assert report([finding, other], list(AGENTS)).replace(", ".join(EACH), "...") == (
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
    text = report([long], [], width=80)
    assert "\x1b[31mproblem\x1b[0m" in text
    plain = text.replace("\x1b[31m", "").replace("\x1b[0m", "").replace("\x1b[1m", "")
    assert max(map(len, plain.splitlines())) <= 80
    assert "\x1b" not in report([long], [])


@given(st.text(), st.text())
def test_nothing_that_is_found_begins_a_line_or_steers_a_terminal(subject: str, text: str) -> None:
    finding = Finding(area="a", subject=subject, state="good", found=text, fix=text)
    lines = report([finding], [text]).split("\n")
    assert all(line.isprintable() for line in lines)
    assert len(lines) <= 9
    (read,) = json.loads(as_json([finding]))
    assert (read["subject"], read["found"]) == (subject, text)


def test_json_has_all_fields_always() -> None:
    (read,) = json.loads(as_json([GOOD]))
    assert read == {
        "area": "slurm", "subject": "sacct", "state": "good", "found": "25.05",
        "impact": [], "stops": [], "fix": "", "not_configured": [],
        "costs": [], "advice": "",
    }  # fmt: skip


def test_names_of_files_that_are_no_utf_8() -> None:
    (read,) = json.loads(as_json([msgspec.structs.replace(GOOD, found="a\udcffb")]))
    assert read["found"] == "a?b"
    assert "a\\udcffb" in report([msgspec.structs.replace(GOOD, found="a\udcffb")], [])


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
    done, hung, failed, broken = together([quick, hang, fail, break_], 0.3)
    assert time.monotonic() - begin < 2
    released.set()
    assert done == "quick"
    assert isinstance(hung, ProgramError)
    assert str(hung) == "not finished after 0.3 s"
    assert isinstance(failed, NotHereError)
    assert str(broken) == "ZeroDivisionError: by nothing"


def test_a_file_that_hangs_costs_its_own_check_alone(node: TreeNode) -> None:
    path = node.path / "proc/sys/kernel/perf_event_paranoid"
    os.mkfifo(path)
    checks = {name: CHECKS[name] for name in ("identity", "hardware counters")}
    begin = time.monotonic()
    findings = examine(site(node), checks, 0.5)
    assert time.monotonic() - begin < 3
    os.close(os.open(path, os.O_WRONLY))
    states = {finding.subject: finding.state for finding in findings}
    assert states["check of hardware counters"] == "problem"
    assert states["user"] == "good"
    assert stopped(findings) == []


def test_what_is_found_before_a_check_fails_counts(node: TreeNode) -> None:
    (node.path / "proc/self/status").unlink()
    (node.path / "proc/stat").unlink()
    findings = {one.subject: one for one in examine(site(node), {"processes": check_processes})}
    assert findings["/proc"].stops == ["agent sample"]
    assert findings["check of processes"].found.startswith("/proc/self/status: No such file")


def test_areas_come_in_their_order_and_unknown_ones_last(node: TreeNode) -> None:
    def check(_: Site) -> Iterator[Finding]:
        for area in ("sinks", "of a plugin", "identity"):
            yield Finding(area=area, subject=area, state="good", found="")

    findings = examine(site(node), {"x": check})
    assert [finding.area for finding in findings] == ["identity", "sinks", "of a plugin"]
