"""Programs that agents run: those of Slurm, lctl, lstopo and what else is configured."""

from __future__ import annotations

import os
import shutil
from functools import partial
from typing import TYPE_CHECKING

from ccagent.doctor.finding import Finding
from ccagent.doctor.together import together
from ccagent.errors import CcagentError, NotHereError
from ccagent.machine.program import ENVIRONMENT as OF_PROGRAMS
from ccagent.machine.slurm_environment import ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccagent.doctor.demands import Site
    from ccagent.machine.node import Node

SECONDS = 5.0
"""Which a program has for its answer."""

_OUTPUT_LIMIT = 4 * 1024 * 1024
_LONGEST = 120
_AREAS = {"sacct": "slurm", "squeue": "slurm", "sinfo": "slurm", "scontrol": "slurm",
          "lctl": "lustre"}  # fmt: skip
_PACKAGES = {
    "slurm": "install Slurm's client programs, or set the path of the program",
    "lustre": "install the Lustre utilities of servers and clients, or set lctl",
    "topology": "install hwloc, or set the path of the program",
}
_OPTIONAL = ("lstopo-no-graphics",)
"""Told of although no agent runs them unless that is configured."""


def check_programs(site: Site) -> Iterator[Finding]:
    """Look for each program, ask those that are known for their version, and put the questions."""
    programs = dict.fromkeys(
        [demand.need.subject for demand in site.demands if demand.need.is_program]
    ) | dict.fromkeys(_OPTIONAL)
    questions = {
        need.subject: need.question
        for _, is_configured, need in site.demands
        if need.question and is_configured
    }
    commands = {program: _version(program) for program in programs} | questions
    tasks = [partial(_outcome, site.node, command) for command in commands.values()]
    for (subject, command), outcome in zip(
        commands.items(), together(tasks, 2 * SECONDS), strict=True
    ):
        program = command[0] or subject
        # That it is missing is told of the program itself.
        if subject in programs or not isinstance(outcome, NotHereError) or program not in programs:
            yield judge_program(area_of(program), subject, outcome)


def area_of(program: str) -> str:
    """Give the area of a program by the name of its file."""
    name = os.path.basename(program)
    if name.startswith(("lstopo", "hwloc")):
        return "topology"
    return _AREAS.get(name, "programs")


def judge_program(area: str, subject: str, outcome: str | CcagentError) -> Finding:
    """Judge what became of a command: what it printed, or an error."""
    if isinstance(outcome, NotHereError):
        return Finding(
            area=area,
            subject=subject,
            state="missing",
            found=str(outcome),
            fix=_PACKAGES.get(area, "install it, or set its path"),
        )
    if isinstance(outcome, CcagentError):
        return Finding(
            area=area,
            subject=subject,
            state="problem",
            found=_shortened(str(outcome)),
            fix=_remedy(area, str(outcome)),
        )
    return Finding(area=area, subject=subject, state="good", found=outcome)


def _shortened(text: str) -> str:
    """Leave the first words, which name the program, and the last line of what it said."""
    *before, last = text.strip().splitlines() or [""]
    if not before:
        return last[: 2 * _LONGEST]
    program, _, _ = before[0].partition(":")
    return f"{program}: {last.removeprefix(f'{program}: ')}"[: 2 * _LONGEST]


def _remedy(area: str, text: str) -> str:
    if "not finished after" in text:
        return "find out what it waits for: a name server, a daemon that is down?"
    if area == "slurm" and "configuration source" in text:
        return "give this node slurm.conf, or set SLURM_CONF where ccagent is started"
    return "run it as this user, and see to what it says"


def _version(program: str) -> Sequence[str]:
    """Give the command for the version of what is known to have one, else an empty one."""
    known = area_of(program) != "programs"
    return (program, "--version") if known else ("", program)


def _outcome(node: Node, command: Sequence[str]) -> str | CcagentError:
    if not command[0]:
        path = os.environ.get("PATH", OF_PROGRAMS["PATH"])
        place = shutil.which(command[1], path=path)
        return place or NotHereError(f"{command[1]}: no such program")
    try:
        output = b"".join(
            node.stream(
                command, time_limit=SECONDS, output_limit=_OUTPUT_LIMIT, environment=ENVIRONMENT
            )
        )
    except CcagentError as error:
        return error
    line = next(iter(output.decode("utf-8", "replace").strip().splitlines()), "")
    return line.strip()[:_LONGEST] or "it answers"
