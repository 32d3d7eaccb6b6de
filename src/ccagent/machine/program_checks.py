"""Checks of programs that agents run: those of Slurm, lctl, lstopo and others."""

from __future__ import annotations

import os
import shutil
from functools import partial
from typing import TYPE_CHECKING

from ccagent.errors import CcagentError, NotHereError
from ccagent.machine.checks import Check, CheckResult
from ccagent.machine.slurm_environment import ENVIRONMENT as PROGRAM_ENVIRONMENT
from ccagent.machine.slurm_environment import run_slurm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.machine.node import Node

SECONDS = 5.0
"""Time limit of a program in seconds."""

_OUTPUT_LIMIT = 4 * 1024 * 1024
_LONGEST = 120
_AREAS = {"sacct": "slurm", "squeue": "slurm", "sinfo": "slurm", "scontrol": "slurm",
          "lctl": "lustre"}  # fmt: skip
_PACKAGES = {
    "slurm": "install Slurm's client programs, or set the path of the program",
    "lustre": "install the Lustre utilities of servers and clients, or set lctl",
    "topology": "install hwloc, or set the path of the program",
}


def require_program(node: Node, program: str, impact: str = "", *, is_vital: bool = False) -> Check:
    """Return the check that a program exists, and prints its version if it is a known one."""
    find = partial(_find_program, node, program)
    return Check(find_area(program), program, find, impact, is_vital)


def require_answer(
    node: Node, subject: str, command: Sequence[str], impact: str, *, is_vital: bool = False
) -> Check:
    """Return the check that a command succeeds. The command must be read-only.

    The first line of its output is shown. A separate check reports a missing program.
    """
    find = partial(_find_answer, node, command)
    return Check(find_area(command[0]), subject, find, impact, is_vital, is_query=True)


def find_area(program: str) -> str:
    """Return the area of a program by its file name."""
    name = os.path.basename(program)
    if name.startswith(("lstopo", "hwloc")):
        return "topology"
    return _AREAS.get(name, "programs")


def assess_program(area: str, outcome: str | CcagentError) -> CheckResult:
    """Return the result for a command's first line of output, or for its error."""
    if isinstance(outcome, NotHereError):
        return CheckResult(
            "missing", str(outcome), _PACKAGES.get(area, "install it, or set its path")
        )
    if isinstance(outcome, CcagentError):
        text = str(outcome)
        return CheckResult("problem", _shorten(text), _choose_fix(area, text))
    return CheckResult("good", outcome)


def _find_program(node: Node, program: str) -> CheckResult:
    area = find_area(program)
    if area != "programs":
        return assess_program(area, _run(node, (program, "--version")))
    path = os.environ.get("PATH", PROGRAM_ENVIRONMENT["PATH"])
    place = shutil.which(program, path=path)
    return assess_program(area, place or NotHereError(f"{program}: no such program"))


def _find_answer(node: Node, command: Sequence[str]) -> CheckResult | None:
    outcome = _run(node, command)
    if isinstance(outcome, NotHereError):
        return None
    return assess_program(find_area(command[0]), outcome)


def _run(node: Node, command: Sequence[str]) -> str | CcagentError:
    """Return the first line of a command's output, or its error."""
    try:
        output = run_slurm(node, command, time_limit=SECONDS, output_limit=_OUTPUT_LIMIT)
    except CcagentError as error:
        return error
    line = next(iter(output.decode("utf-8", "replace").strip().splitlines()), "")
    return line.strip()[:_LONGEST] or "it answers"


def _shorten(text: str) -> str:
    """Return the program's name and the last line of an error."""
    *before, last = text.strip().splitlines() or [""]
    if not before:
        return last[: 2 * _LONGEST]
    program, _, _ = before[0].partition(":")
    return f"{program}: {last.removeprefix(f'{program}: ')}"[: 2 * _LONGEST]


def _choose_fix(area: str, text: str) -> str:
    if "not finished after" in text:
        return "find out what it waits for: a name server, a daemon that is down?"
    if area == "slurm" and "configuration source" in text:
        return "give this node slurm.conf, or set SLURM_CONF where ccagent is started"
    return "run it as this user, and correct what it complains of"
