"""Setup of Jobstats on this node, its check by `ccagent lustre check`, and the doctor's checks.

Parameters are read from files, and from lctl if there is no file. Sources: Lustre manual, "Lustre
Jobstats"; lustre_get_jobid() and jobid_interpret_string() in lustre/obdclass/jobid.c;
lprocfs_job_cleanup() in lustre/obdclass/lprocfs_jobstats.c.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

from ccagent.agents.lustre.jobstats.source import KINDS, JobstatsSource, run_until_failure
from ccagent.errors import CcagentError, NotHereError
from ccagent.log import printable
from ccagent.machine.checks import Check, CheckResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccagent.machine.node import Node


INTERVAL, STATS = _OF_TARGET = ("job_cleanup_interval", "job_stats")
"""Parameters of each target."""

_OF_NODE = ("jobid_var", "jobid_name", "jobid_this_session")
_PLACES = ("sys/fs/lustre", "proc/fs/lustre", "proc/sys/lustre")
_TARGET = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_NAME = re.compile(
    rf"(?:{'|'.join(KINDS)})\.{_TARGET.pattern}\.(?:{'|'.join(_OF_TARGET)})|{'|'.join(_OF_NODE)}"
)
_LARGEST_FILE = 4096
_LONGEST_VALUE = 100

Setup = dict[str, str | None]
"""Values of parameters by name, `jobid_var`, `mdt.fs-MDT0000.job_stats`; None if unknown.

The value of an existing `job_stats` is empty.
"""


def parse_setup(content: bytes) -> Setup:
    """Parse the output of `lctl get_param`, with any other parameters; the last value counts.

    A bare `mdt.fs-MDT0000.job_stats` comes from `lctl get_param -N`.
    """
    found: Setup = {}
    waiting = ""
    for line in content.decode("utf-8", "backslashreplace").split("\n"):
        name, equals, value = line.partition("=")
        name = name.strip()
        is_stats = name.endswith(STATS)
        if _NAME.fullmatch(name) and (equals or is_stats):
            found[name] = "" if is_stats else _value(value)
            waiting = "" if found[name] or is_stats else name
        elif waiting and line.strip():
            # lctl prints a value on a separate line if it doesn't fit into 80 columns.
            if not equals and not line.startswith("error:"):
                found[waiting] = _value(line)
            waiting = ""
    return found


def read_setup(node: Node, lctl: str, time_limit: float) -> Setup:
    """Read the parameters from /sys and /proc, and missing ones through `lctl`.

    time_limit: seconds for all queries together. Without Lustre there are no parameters.
    """
    found = _from_files(node)
    deadline = node.clock.monotonic() + time_limit
    for arguments in _missing(found):
        left = deadline - node.clock.monotonic()
        command = [lctl, "get_param", *arguments]
        printed = run_until_failure(node, command, left, []) if left > 0 else None
        if printed is None:
            break
        for name, value in ({"jobid_var": None} | parse_setup(printed)).items():
            _add(found, name, value)
    for target in _targets(found):
        for name in _OF_TARGET:
            found.setdefault(f"{target}.{name}", None)
    return found


def _targets(setup: Setup) -> list[str]:
    return sorted({target for name in setup if (target := name.rpartition(".")[0])})


def _value(text: str) -> str:
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        text = text[1:-1].strip()
    return printable(text[:_LONGEST_VALUE])


def _from_files(node: Node) -> Setup:
    found: Setup = {}
    for place in _PLACES:
        if _list(node, place) is None:
            continue
        for name in _OF_NODE:
            _add(found, name, _read(node, f"{place}/{name}"))
        # Later versions have the interval below /sys; job_stats is still below /proc.
        for kind in KINDS:
            for target in filter(_TARGET.fullmatch, _list(node, f"{place}/{kind}") or []):
                directory, key = f"{place}/{kind}/{target}", f"{kind}.{target}"
                names = _list(node, directory)
                if names is not None:
                    _add(found, f"{key}.{INTERVAL}", _read(node, f"{directory}/{INTERVAL}"))
                    _add(found, f"{key}.{STATS}", "" if STATS in names else None)
    return found


def _add(found: Setup, key: str, value: str | None) -> None:
    if found.get(key) is None:
        found[key] = value


def _list(node: Node, path: str) -> list[str] | None:
    """Return the names in a directory; None if there is none."""
    try:
        return node.list(path)
    except NotHereError:
        return None
    except CcagentError:
        return []


def _read(node: Node, path: str) -> str | None:
    try:
        content = node.read(path, _LARGEST_FILE)
    except CcagentError:
        return None
    return _value(content.decode("utf-8", "backslashreplace"))


def _missing(found: Setup) -> Iterator[list[str]]:
    """Yield the lctl arguments for parameters without a file.

    One parameter at a time: a version that lacks one fails, and may not print the rest.
    """
    yield from ([name] for name in _OF_NODE if found.get(name) is None)
    of_targets = [value for name, value in found.items() if "." in name]
    if not of_targets or None in of_targets:
        yield from ([f"{kind}.*.{INTERVAL}"] for kind in KINDS)
        yield from (["-N", f"{kind}.*.{STATS}"] for kind in KINDS)


LONGEST_ID = 31
"""Maximum characters of an entry id: LUSTRE_JOBID_SIZE without the final zero."""

USUAL_LENGTHS = {"e": 15, "h": 20, "H": 8, "j": 8, "u": 8, "g": 8, "p": 7}
"""Typical maximum length of each code. Executable names are never longer."""

_CODE = re.compile(r"%(?:\.([0-9]{0,9}))?(.?)", re.DOTALL)
_DEFAULT_INTERVAL = 600
Level = Literal["ok", "warning", "problem"]


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


def findings(known: Setup, *, every: float | None, formats: Sequence[str]) -> list[SetupFinding]:
    """Return findings for an agent with the interval `every` (s) and these `formats`."""
    if not known:
        return [SetupFinding("problem", "lustre", "no Lustre on this node")]
    if all(value is None for value in known.values()):
        text = "can't read any parameter: Lustre isn't loaded, or this user has no permission"
        return [SetupFinding("problem", "lustre", text)]
    targets = _targets(known)
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


def _of_variable(known: Setup, *, is_server: bool) -> Iterator[SetupFinding]:
    variable, session = known.get("jobid_var"), known.get("jobid_this_session")
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


def _made_formats(known: Setup) -> Iterator[tuple[str, str]]:
    """Yield the formats of the ids of this node, each with the parameter that causes it."""
    variable, name = known.get("jobid_var"), known.get("jobid_name")
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


def _of_target(target: str, known: Setup, every: float | None) -> Iterator[SetupFinding]:
    if known.get(f"{target}.{STATS}", "") is None:
        yield SetupFinding("problem", target, "has no job_stats: can't collect its jobstats")
    interval = _seconds(known.get(f"{target}.{INTERVAL}"))
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


def _without_cadence(known: Setup) -> SetupFinding:
    intervals = [_seconds(value) for name, value in known.items() if name.endswith(INTERVAL)]
    shortest = min(filter(None, intervals), default=_DEFAULT_INTERVAL)
    text = f"no cadence is configured; set less than {shortest / 2:g} s, else entries are lost"
    return SetupFinding("warning", "every", text)


def _seconds(text: str | None) -> int | None:
    if text is None or not (text.isascii() and text.isdecimal()) or len(text) > 19:
        return None
    return int(text)


_AREA = "lustre"
_CLIENT = ("proc/fs/lustre/llite", "sys/fs/lustre/llite")
_SHOWN = 8


def check_lustre(
    node: Node, source: JobstatsSource, *, has_jobstats: bool, statistics: Sequence[str], lctl: str
) -> Iterator[Check]:
    """Yield the checks of an agent with this source and these settings."""
    from ccagent.machine.requirements import require_program

    if has_jobstats:
        find = partial(find_targets, node, source)
        impact = "I/O of jobs"
        yield Check(_AREA, "targets with jobstats", find, impact, is_vital=not statistics)
    if has_jobstats or statistics:
        yield require_program(node, lctl, "parameters without a file readable by this user")
    impact = "statistics of clients" if "llite" in statistics else ""
    yield Check(_AREA, "mounted Lustre", partial(find_clients, node), impact)


def find_targets(node: Node, source: JobstatsSource) -> CheckResult:
    """Return the result for the targets with jobstats, without reading their texts."""
    errors: list[CcagentError] = []
    targets: list[str] = []
    try:
        targets = [text.name or source.recorded for text in source.texts(node, errors)]
    except NotHereError:
        pass
    except CcagentError as error:
        errors.append(error)
    return assess_targets(targets, list(dict.fromkeys(map(str, errors))))


def assess_targets(targets: Sequence[str], errors: Sequence[str]) -> CheckResult:
    """Return the result for the targets of this server."""
    if errors:
        fix = (
            "let this user run lctl as root or read the job_stats files; "
            "`ccagent lustre check` shows more"
        )
        return CheckResult("problem", f"{len(targets)}; {'; '.join(errors)}", fix)
    if targets:
        more = f" and {len(targets) - _SHOWN} more" if len(targets) > _SHOWN else ""
        fix = "run `ccagent lustre check` to see whether data are lost between observations"
        return CheckResult("good", f"{', '.join(targets[:_SHOWN])}{more}", fix)
    return CheckResult(
        "missing", "this node has no targets", "run the agent lustre on an OSS or MDS"
    )


def find_clients(node: Node) -> CheckResult:
    """Return the result for the Lustre file systems mounted on this node."""
    for directory in _CLIENT:
        if names := node.list_names(directory):
            return CheckResult("good", ", ".join(names[:_SHOWN]))
    return CheckResult("missing", "none")
