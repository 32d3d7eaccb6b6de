"""Check of the Jobstats setup of this node and of possible data loss: `ccagent lustre check`.

Sources: Lustre manual, "Lustre Jobstats"; lustre_get_jobid() and jobid_interpret_string() in
lustre/obdclass/jobid.c; lprocfs_job_cleanup() in lustre/obdclass/lprocfs_jobstats.c.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

from ccagent.agents.lustre.jobstats.setup import INTERVAL, STATS, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccagent.agents.lustre.jobstats.setup import JobstatsSetting

LONGEST_ID = 31
"""Maximum characters of an entry id: LUSTRE_JOBID_SIZE without the final zero."""

USUAL_LENGTHS = {"e": 15, "h": 20, "H": 8, "j": 8, "u": 8, "g": 8, "p": 7}
"""Typical maximum length of each code. Executable names are never longer."""

_CODE = re.compile(r"%(?:\.([0-9]{0,9}))?(.?)", re.DOTALL)
_DEFAULT_INTERVAL = 600
_VARIABLE = ("", "jobid_var")

Level = Literal["ok", "warning", "problem"]
_Found = dict[tuple[str, str], str | None]


class SetupFinding(NamedTuple):
    """A finding about `subject`: a parameter, a target, `every` or `lustre`."""

    level: Level
    subject: str
    text: str


_LOSSES = {
    "disable": "this client sends no ids: job_stats has none of its I/O",
    "procname_uid": "ids are %e.%u: no job ids; a user's programs of equal name share an entry",
    "nodelocal": "ids are jobid_name with an empty %j: jobs on a shared node share an entry",
    "session": "no job ids in sessions without jobid_this_session",
    "": "no job ids, only the other parts of jobid_name",
}
"""Missing parts of a client's ids, by jobid_var."""


def findings(
    settings: Sequence[JobstatsSetting], *, every: float | None, formats: Sequence[str]
) -> list[SetupFinding]:
    """Return findings for an agent with the interval `every` (s) and these `formats`."""
    known = {(one.target, one.name): one.value for one in settings}
    if not known:
        return [SetupFinding("problem", "lustre", "no Lustre on this node")]
    if all(value is None for value in known.values()):
        text = "can't read any parameter: Lustre isn't loaded, or this user has no permission"
        return [SetupFinding("problem", "lustre", text)]
    targets = sorted({target for target, _ in known if target})
    found = list(_of_variable(known, is_server=bool(targets)))
    for subject, text in _made_formats(known):
        found += _of_format(subject, text, formats)
    if not targets:
        text = "no targets on this node: job_cleanup_interval and job_stats are on servers"
        found.append(SetupFinding("ok", "targets", text))
    for target in targets:
        found += _of_target(target, known, every)
    if targets and every is None:
        found.append(_without_cadence(known))
    return found


def report(findings: Sequence[SetupFinding]) -> str:
    """Return one aligned line per finding, without a final newline."""
    safe = list(map(_safe, findings))
    width = max((len(one.subject) for one in safe), default=0)
    return "\n".join(f"{one.level:<7}  {one.subject:<{width}}  {one.text}" for one in safe)


def as_json(findings: Sequence[SetupFinding]) -> bytes:
    """Return a JSON array of objects with `level`, `subject` and `text`."""
    import msgspec

    return msgspec.json.encode([_safe(one)._asdict() for one in findings])


def exit_status(findings: Sequence[SetupFinding]) -> int:
    """Return 1 if there is a problem, else 0."""
    return int(any(one.level == "problem" for one in findings))


def _safe(finding: SetupFinding) -> SetupFinding:
    return SetupFinding(finding.level, printable(finding.subject), printable(finding.text))


def _of_variable(known: _Found, *, is_server: bool) -> Iterator[SetupFinding]:
    variable, session = known.get(_VARIABLE), known.get(("", "jobid_this_session"))
    if variable is None:
        yield SetupFinding(
            "warning", "jobid_var", "unknown, and so are the ids that this node sends"
        )
    elif is_server:
        text = "affects only mounts of this server, not the ids of clients"
        yield SetupFinding("ok", "jobid_var", f"{variable or 'empty'}: {text}")
    elif variable in _LOSSES:
        level: Level = "problem" if variable == "disable" else "warning"
        yield SetupFinding(level, "jobid_var", f"{variable or 'empty'}: {_LOSSES[variable]}")
    else:
        text = "no job ids for processes without this environment variable"
        yield SetupFinding("ok", "jobid_var", f"{variable}: {text}")
    if session:
        text = "of this session" if variable == "session" else "no effect without jobid_var=session"
        yield SetupFinding("ok", "jobid_this_session", f"{session}: {text}")


def _made_formats(known: _Found) -> Iterator[tuple[str, str]]:
    """Yield the formats of the ids of this node, each with the parameter that causes it."""
    variable, name = known.get(_VARIABLE), known.get(("", "jobid_name"))
    if variable == "disable":
        return
    if variable == "procname_uid":
        yield "jobid_var", "%e.%u"
        return
    if variable not in {None, "", "nodelocal"} and "%j" not in (name or ""):
        # Only processes without a job id use such a jobid_name.
        yield "jobid_var", "%j"
    if name:
        before, condition, after = name.partition("%j?")
        if condition:
            # 2.16: the code after the question mark replaces a missing job id.
            yield "jobid_name", f"{before}%j{after[2:]}"
        yield "jobid_name", before + after


def _of_format(subject: str, text: str, formats: Sequence[str]) -> list[SetupFinding]:
    plain = _plain(text)
    length = _usual_length(text)
    is_known = bool({plain, plain.replace("%H", "%h")} & set(map(_plain, formats)))
    listed = ", ".join(formats) or "none configured"
    losses = {
        "all processes of this node have the same id": "%" not in plain,
        f"not a format of the agent ({listed}); its ids are flagged malformed": not is_known,
        f"may have {length} characters, but Lustre keeps {LONGEST_ID}: "
        "ids that differ only after them share an entry": length > LONGEST_ID,
        "%h may be truncated, and gives another series than a short name; %H is safer": "%h"
        in plain,
        "%p creates one entry per process, in the memory of each server": "%p" in plain,
    }
    found = [SetupFinding("warning", subject, f"{text}: {loss}") for loss in losses if losses[loss]]
    return found or [SetupFinding("ok", subject, f"{text}: a format of the agent")]


def _plain(text: str) -> str:
    """Return a format as clients use it, without spaces and unknown codes; also without widths."""
    known = _CODE.sub(lambda code: f"%{code[2]}" if code[2] in USUAL_LENGTHS else "", text)
    return "".join(known.split())


def _usual_length(text: str) -> int:
    length = len("".join(_CODE.sub("", text).split()))
    for code in _CODE.finditer(text):
        usual = USUAL_LENGTHS.get(code[2], 0)
        length += min(int(code[1] or 0) or usual, usual)
    return length


def _of_target(target: str, known: _Found, every: float | None) -> Iterator[SetupFinding]:
    if known.get((target, STATS), "") is None:
        yield SetupFinding("problem", target, "has no job_stats: can't collect its jobstats")
    interval = _seconds(known.get((target, INTERVAL)))
    if interval is None:
        text = f"{INTERVAL} is unknown (default {_DEFAULT_INTERVAL} s): can't check the cadence"
        yield SetupFinding("warning", target, text)
    elif interval == 0:
        text = f"{INTERVAL} is 0: entries stay until cleared manually, and memory use grows"
        yield SetupFinding("warning", target, text)
    elif every is None:
        yield SetupFinding("ok", target, f"{INTERVAL} is {interval} s")
    elif every < interval / 2:
        text = f"every {every:g} s is less than half of {INTERVAL}, {interval} s"
        yield SetupFinding("ok", target, text)
    else:
        loss = "resets may be missed, and one failed observation loses entries"
        if every >= interval:
            loss = "entries removed between two observations are lost"
        text = f"every {every:g} s is not less than half of {INTERVAL}, {interval} s: {loss}"
        yield SetupFinding("problem", target, text)


def _without_cadence(known: _Found) -> SetupFinding:
    intervals = [_seconds(value) for (_, name), value in known.items() if name == INTERVAL]
    shortest = min(filter(None, intervals), default=_DEFAULT_INTERVAL)
    text = f"no cadence is configured; set less than {shortest / 2:g} s, else entries are lost"
    return SetupFinding("warning", "every", text)


def _seconds(text: str | None) -> int | None:
    if text is None or not (text.isascii() and text.isdecimal()) or len(text) > 19:
        return None
    return int(text)
