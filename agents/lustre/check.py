"""How Jobstats is set up on this node, and what will be lost: `ccagent lustre check`.

Sources: Lustre manual, "Lustre Jobstats"; lustre_get_jobid() and jobid_interpret_string() in
lustre/obdclass/jobid.c; lprocfs_job_cleanup() in lustre/obdclass/lprocfs_jobstats.c.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

from ccagent.errors import CcagentError, NotHereError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccagent.node import Node

LONGEST_ID = 31
"""Characters of an entry id: LUSTRE_JOBID_SIZE without the final zero."""

USUAL_LENGTHS = {"e": 15, "h": 20, "H": 8, "j": 8, "u": 8, "g": 8, "p": 7}
"""Characters that each code may well become; a longer executable name does not exist."""

_OF_NODE = ("jobid_var", "jobid_name", "jobid_this_session")
_INTERVAL, _STATS = _OF_TARGET = ("job_cleanup_interval", "job_stats")
_PLACES = ("sys/fs/lustre", "proc/fs/lustre", "proc/sys/lustre")
_TYPES = ("mdt", "obdfilter")
_TARGET = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_CODE = re.compile(r"%(?:\.([0-9]{0,9}))?(.?)", re.DOTALL)
_LARGEST_FILE = 4096
_LARGEST_OUTPUT = 1024 * 1024
_LONGEST_VALUE = 100
_DEFAULT_INTERVAL = 600
_VARIABLE = ("", "jobid_var")

Level = Literal["ok", "warning", "problem"]
_Found = dict[tuple[str, str], str | None]


class JobstatsSetting(NamedTuple):
    """A parameter; `target` is `mdt.fs-MDT0000`, empty for those of the node.

    `value` is None if it can't be found out. Of `job_stats` it is empty where there are some.
    """

    name: str
    target: str
    value: str | None


class Finding(NamedTuple):
    """What is to be said of `subject`: a parameter, a target, `every` or `lustre`."""

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


def parse_settings(content: bytes) -> list[JobstatsSetting]:
    """Parse what `lctl get_param` prints, other parameters among it; the last value counts.

    A bare `mdt.fs-MDT0000.job_stats` is one of `lctl get_param -N`.
    """
    found: _Found = {}
    waiting: tuple[str, str] | None = None
    for line in content.decode("utf-8", "backslashreplace").split("\n"):
        name, equals, value = line.partition("=")
        key = _key(name.strip())
        if key is not None and (equals or key[1] == _STATS):
            found[key] = "" if key[1] == _STATS else _value(value)
            waiting = None if found[key] or key[1] == _STATS else key
        elif waiting is not None and line.strip():
            # lctl puts a value on a line of its own if it doesn't fit into 80 columns.
            if not equals and not line.startswith("error:"):
                found[waiting] = _value(line)
            waiting = None
    return _settings(found)


def read_settings(node: Node, lctl: str, time_limit: float) -> list[JobstatsSetting]:
    """Read the parameters from /sys and /proc, and ask `lctl` for those that aren't there.

    `time_limit` is in seconds, for all that is asked together. Without Lustre the list is empty.
    """
    found = _from_files(node)
    deadline = node.clock.monotonic() + time_limit
    for arguments in _missing(found):
        left = deadline - node.clock.monotonic()
        printed = _printed(node, [lctl, "get_param", *arguments], left) if left > 0 else None
        if printed is None:
            break
        _add(found, _VARIABLE, None)
        for name, target, value in parse_settings(printed):
            _add(found, (target, name), value)
    for target in {target for target, _ in found if target}:
        for name in _OF_TARGET:
            _add(found, (target, name), None)
    return _settings(found)


def findings(
    settings: Sequence[JobstatsSetting], *, every: float | None, formats: Sequence[str]
) -> list[Finding]:
    """Judge the settings for an agent that observes each `every` seconds and knows `formats`."""
    known = {(one.target, one.name): one.value for one in settings}
    if not known:
        return [Finding("problem", "lustre", "there is no Lustre on this node")]
    if all(value is None for value in known.values()):
        text = "nothing can be read: Lustre isn't loaded, or this user may not read its parameters"
        return [Finding("problem", "lustre", text)]
    targets = sorted({target for target, _ in known if target})
    found = list(_of_variable(known, is_server=bool(targets)))
    for subject, text in _made_formats(known):
        found += _of_format(subject, text, formats)
    if not targets:
        text = "no targets on this node: job_cleanup_interval and job_stats are on servers"
        found.append(Finding("ok", "targets", text))
    for target in targets:
        found += _of_target(target, known, every)
    if targets and every is None:
        found.append(_without_cadence(known))
    return found


def report(findings: Sequence[Finding]) -> str:
    """Give a line for each finding, aligned; the last has no newline."""
    safe = list(map(_safe, findings))
    width = max((len(one.subject) for one in safe), default=0)
    return "\n".join(f"{one.level:<7}  {one.subject:<{width}}  {one.text}" for one in safe)


def as_json(findings: Sequence[Finding]) -> bytes:
    """Give an array of objects with `level`, `subject` and `text`."""
    import msgspec

    return msgspec.json.encode([_safe(one)._asdict() for one in findings])


def exit_status(findings: Sequence[Finding]) -> int:
    """Give 1 if there is a problem, else 0."""
    return int(any(one.level == "problem" for one in findings))


def _key(name: str) -> tuple[str, str] | None:
    """Give target and name of a parameter that matters here."""
    kind, _, rest = name.partition(".")
    target, _, parameter = rest.partition(".")
    if kind in _TYPES and parameter in _OF_TARGET and _TARGET.fullmatch(target):
        return f"{kind}.{target}", parameter
    return ("", name) if name in _OF_NODE else None


def _value(text: str) -> str:
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        text = text[1:-1].strip()
    return _printable(text[:_LONGEST_VALUE])


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def _safe(finding: Finding) -> Finding:
    return Finding(finding.level, _printable(finding.subject), _printable(finding.text))


def _settings(found: _Found) -> list[JobstatsSetting]:
    return [JobstatsSetting(name, target, value) for (target, name), value in sorted(found.items())]


def _from_files(node: Node) -> _Found:
    found: _Found = {}
    for place in _PLACES:
        if _listed(node, place) is None:
            continue
        for name in _OF_NODE:
            _add(found, ("", name), _read(node, f"{place}/{name}"))
        # Later versions have the interval below /sys; job_stats have remained below /proc.
        for kind in _TYPES:
            for target in filter(_TARGET.fullmatch, _listed(node, f"{place}/{kind}") or []):
                directory, key = f"{place}/{kind}/{target}", f"{kind}.{target}"
                names = _listed(node, directory)
                if names is not None:
                    _add(found, (key, _INTERVAL), _read(node, f"{directory}/{_INTERVAL}"))
                    _add(found, (key, _STATS), "" if _STATS in names else None)
    return found


def _add(found: _Found, key: tuple[str, str], value: str | None) -> None:
    if found.get(key) is None:
        found[key] = value


def _listed(node: Node, path: str) -> list[str] | None:
    """Give the names in a directory; None if there is none."""
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


def _missing(found: _Found) -> Iterator[list[str]]:
    """Give the arguments that ask for what files didn't tell.

    One parameter at a time: a version without it fails, and need not print the others.
    """
    yield from ([name] for name in _OF_NODE if found.get(("", name)) is None)
    of_targets = [value for (target, _), value in found.items() if target]
    if not of_targets or None in of_targets:
        yield from ([f"{kind}.*.{_INTERVAL}"] for kind in _TYPES)
        yield from (["-N", f"{kind}.*.{_STATS}"] for kind in _TYPES)


def _printed(node: Node, command: list[str], time_limit: float) -> bytes | None:
    """Give what a program printed before it failed, if it did; None if there is no such program."""
    printed = bytearray()
    try:
        for part in node.stream(command, time_limit=time_limit, output_limit=_LARGEST_OUTPUT):
            printed += part
    except NotHereError:
        return None
    except CcagentError:
        pass
    return bytes(printed)


def _of_variable(known: _Found, *, is_server: bool) -> Iterator[Finding]:
    variable, session = known.get(_VARIABLE), known.get(("", "jobid_this_session"))
    if variable is None:
        yield Finding("warning", "jobid_var", "isn't known: nor are the ids that this node sends")
    elif is_server:
        text = "concerns what this server mounts itself; it has no effect on what clients send"
        yield Finding("ok", "jobid_var", f"{variable or 'empty'}: {text}")
    elif variable in _LOSSES:
        level: Level = "problem" if variable == "disable" else "warning"
        yield Finding(level, "jobid_var", f"{variable or 'empty'}: {_LOSSES[variable]}")
    else:
        text = "no job ids for processes that don't have it in their environment"
        yield Finding("ok", "jobid_var", f"{variable}: {text}")
    if session:
        text = "of this session" if variable == "session" else "no effect without jobid_var=session"
        yield Finding("ok", "jobid_this_session", f"{session}: {text}")


def _made_formats(known: _Found) -> Iterator[tuple[str, str]]:
    """Give the formats of the ids that this node sends, each with the parameter it is due to."""
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


def _of_format(subject: str, text: str, formats: Sequence[str]) -> list[Finding]:
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
    found = [Finding("warning", subject, f"{text}: {loss}") for loss in losses if losses[loss]]
    return found or [Finding("ok", subject, f"{text}: a format of the agent")]


def _plain(text: str) -> str:
    """Give a format as clients take it: without spaces and unknown codes; here without widths."""
    known = _CODE.sub(lambda code: f"%{code[2]}" if code[2] in USUAL_LENGTHS else "", text)
    return "".join(known.split())


def _usual_length(text: str) -> int:
    length = len("".join(_CODE.sub("", text).split()))
    for code in _CODE.finditer(text):
        usual = USUAL_LENGTHS.get(code[2], 0)
        length += min(int(code[1] or 0) or usual, usual)
    return length


def _of_target(target: str, known: _Found, every: float | None) -> Iterator[Finding]:
    if known.get((target, _STATS), "") is None:
        yield Finding("problem", target, "has no job_stats: nothing of it can be collected")
    interval = _seconds(known.get((target, _INTERVAL)))
    if interval is None:
        text = f"{_INTERVAL} isn't known ({_DEFAULT_INTERVAL} s unless set): is the cadence enough?"
        yield Finding("warning", target, text)
    elif interval == 0:
        text = f"{_INTERVAL} is 0: entries stay until somebody clears them, and memory grows"
        yield Finding("warning", target, text)
    elif every is None:
        yield Finding("ok", target, f"{_INTERVAL} is {interval} s")
    elif every < interval / 2:
        text = f"every {every:g} s is under half of {_INTERVAL}, {interval} s"
        yield Finding("ok", target, text)
    else:
        loss = "resets may go unseen, and one observation that fails loses entries"
        if every >= interval:
            loss = "entries that are removed between two observations are lost"
        text = f"every {every:g} s is not under half of {_INTERVAL}, {interval} s: {loss}"
        yield Finding("problem", target, text)


def _without_cadence(known: _Found) -> Finding:
    intervals = [_seconds(value) for (_, name), value in known.items() if name == _INTERVAL]
    shortest = min(filter(None, intervals), default=_DEFAULT_INTERVAL)
    text = f"no cadence is configured: under {shortest / 2:g} s is needed, else entries are lost"
    return Finding("warning", "every", text)


def _seconds(text: str | None) -> int | None:
    if text is None or not (text.isascii() and text.isdecimal()) or len(text) > 19:
        return None
    return int(text)
