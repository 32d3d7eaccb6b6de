"""The setup of Jobstats on this node, and what will be lost: `ccagent lustre check`.

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
"""Characters of an entry id: LUSTRE_JOBID_SIZE without the final zero."""

USUAL_LENGTHS = {"e": 15, "h": 20, "H": 8, "j": 8, "u": 8, "g": 8, "p": 7}
"""Characters that each code may well become; a longer executable name does not exist."""

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
    "disable": "this client sends no ids: nothing that it reads and writes is in any job_stats",
    "procname_uid": "ids are %e.%u: no job ids, a user's programs of one name are one entry",
    "nodelocal": "ids are jobid_name alone, %j in it is empty: jobs that share this node are one",
    "session": "no job ids in sessions for which nobody sets jobid_this_session",
    "": "no job ids, only what else jobid_name has",
}
"""By jobid_var, what isn't in the ids of a client."""


def findings(
    settings: Sequence[JobstatsSetting], *, every: float | None, formats: Sequence[str]
) -> list[SetupFinding]:
    """Check the settings for an agent that observes each `every` seconds and knows `formats`."""
    known = {(one.target, one.name): one.value for one in settings}
    if not known:
        return [SetupFinding("problem", "lustre", "there is no Lustre on this node")]
    if all(value is None for value in known.values()):
        text = "nothing can be read: Lustre isn't loaded, or this user may not read its parameters"
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
    """Return a line for each finding, aligned; the last has no newline."""
    safe = list(map(_safe, findings))
    width = max((len(one.subject) for one in safe), default=0)
    return "\n".join(f"{one.level:<7}  {one.subject:<{width}}  {one.text}" for one in safe)


def as_json(findings: Sequence[SetupFinding]) -> bytes:
    """Return an array of objects with `level`, `subject` and `text`."""
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
            "warning", "jobid_var", "isn't known: nor are the ids that this node sends"
        )
    elif is_server:
        text = "concerns what this server mounts itself; it has no effect on what clients send"
        yield SetupFinding("ok", "jobid_var", f"{variable or 'empty'}: {text}")
    elif variable in _LOSSES:
        level: Level = "problem" if variable == "disable" else "warning"
        yield SetupFinding(level, "jobid_var", f"{variable or 'empty'}: {_LOSSES[variable]}")
    else:
        text = "no job ids for processes that don't have it in their environment"
        yield SetupFinding("ok", "jobid_var", f"{variable}: {text}")
    if session:
        text = "of this session" if variable == "session" else "no effect without jobid_var=session"
        yield SetupFinding("ok", "jobid_this_session", f"{session}: {text}")


def _made_formats(known: _Found) -> Iterator[tuple[str, str]]:
    """Yield the formats of the ids that this node sends, each with the parameter it is due to."""
    variable, name = known.get(_VARIABLE), known.get(("", "jobid_name"))
    if variable == "disable":
        return
    if variable == "procname_uid":
        yield "jobid_var", "%e.%u"
        return
    if variable not in {None, "", "nodelocal"} and "%j" not in (name or ""):
        # Such a jobid_name is used by processes without a job id alone.
        yield "jobid_var", "%j"
    if name:
        before, condition, after = name.partition("%j?")
        if condition:
            # 2.16: the code behind the question mark stands in for a job id that is missing.
            yield "jobid_name", f"{before}%j{after[2:]}"
        yield "jobid_name", before + after


def _of_format(subject: str, text: str, formats: Sequence[str]) -> list[SetupFinding]:
    plain = _plain(text)
    length = _usual_length(text)
    is_known = bool({plain, plain.replace("%H", "%h")} & set(map(_plain, formats)))
    listed = ", ".join(formats) or "it has none"
    losses = {
        "all processes of this node have this very id": "%" not in plain,
        f"not a format of the agent ({listed}), ids are flagged malformed": not is_known,
        f"may well have {length} characters, {LONGEST_ID} are kept: "
        "what differs only behind them is one entry": length > LONGEST_ID,
        "%h may be cut, and is another series than a short name; %H is safer": "%h" in plain,
        "%p makes an entry of each process, in the memory of each server": "%p" in plain,
    }
    found = [SetupFinding("warning", subject, f"{text}: {loss}") for loss in losses if losses[loss]]
    return found or [SetupFinding("ok", subject, f"{text}: a format of the agent")]


def _plain(text: str) -> str:
    """Return a format as clients take it: without spaces and unknown codes; here without widths."""
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
        yield SetupFinding("problem", target, "has no job_stats: nothing of it can be collected")
    interval = _seconds(known.get((target, INTERVAL)))
    if interval is None:
        text = f"{INTERVAL} isn't known ({_DEFAULT_INTERVAL} s unless set): is the cadence enough?"
        yield SetupFinding("warning", target, text)
    elif interval == 0:
        text = f"{INTERVAL} is 0: entries stay until somebody clears them, and memory grows"
        yield SetupFinding("warning", target, text)
    elif every is None:
        yield SetupFinding("ok", target, f"{INTERVAL} is {interval} s")
    elif every < interval / 2:
        text = f"every {every:g} s is under half of {INTERVAL}, {interval} s"
        yield SetupFinding("ok", target, text)
    else:
        loss = "resets may go unseen, and one observation that fails loses entries"
        if every >= interval:
            loss = "entries that are removed between two observations are lost"
        text = f"every {every:g} s is not under half of {INTERVAL}, {interval} s: {loss}"
        yield SetupFinding("problem", target, text)


def _without_cadence(known: _Found) -> SetupFinding:
    intervals = [_seconds(value) for (_, name), value in known.items() if name == INTERVAL]
    shortest = min(filter(None, intervals), default=_DEFAULT_INTERVAL)
    text = f"no cadence is configured: under {shortest / 2:g} s is needed, else entries are lost"
    return SetupFinding("warning", "every", text)


def _seconds(text: str | None) -> int | None:
    if text is None or not (text.isascii() and text.isdecimal()) or len(text) > 19:
        return None
    return int(text)
