"""Checks of the daemon: its lock, its directories, its user, and the status of a running one.

systemd creates /run/NAME at the start of a unit with `RuntimeDirectory=NAME`, and removes it at the
stop (systemd.exec(5)). Then a missing directory is not a problem. Root may write everything, so a
check as root is not valid for the service's user.
"""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING

from ccagent.config.warnings import unsafe_places
from ccagent.doctor.finding import Finding, Site
from ccagent.errors import CcagentError, NotHereError, ProgramError
from ccagent.machine.program import ProgramUser, run
from ccagent.service.status_socket import read_status

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ccagent.counters import SinkCounters
    from ccagent.machine.node import Node


_AREA = "daemon"
_UNIT = "ccagent.service"
_FOLDERS = ("etc/systemd/system", "usr/lib/systemd/system", "lib/systemd/system")
"""Directories of units, highest priority first."""


def check_service(site: Site) -> Iterator[Finding]:
    """Yield findings on the daemon's lock, if configured, and on the status of its sinks."""
    yield from _check_lock(site)
    if site.node.is_live and site.configuration.settings.status_socket:
        try:
            status = read_status(site.configuration.settings.status_socket)
        except CcagentError:
            return  # no daemon runs, or this user may not connect
        yield from assess_sinks(status.sinks)


def check_directories(site: Site) -> Iterator[Finding]:
    """Yield a problem for each directory of ccagent that other users can write."""
    if not site.node.is_live:
        return
    fix = "use a directory that only root and the user of the service can write to"
    impact = ["files of other users there are refused: a lock, queue or file may not work"]
    for key, reason in unsafe_places(site.configuration):
        yield Finding(_AREA, key, "problem", reason, fix, impact)


def assess_sinks(sinks: Mapping[str, SinkCounters]) -> Iterator[Finding]:
    """Yield a problem for each error of a sink that a running daemon reports."""
    for name, counters in sinks.items():
        if counters.restarts:
            found = f"continued after {counters.restarts} unforeseen errors since it started"
            fix = "look for the error in the log (journalctl -u ccagent) and report it"
            impact = [f"sink {name}: pauses after each error; messages stay in the queue"]
            yield Finding(_AREA, f"thread of sink {name}", "problem", found, fix, impact)
        if counters.queue_error:
            found, subject = counters.queue_error, f"queue of sink {name}"
            fix = "see the finding `outbox`, and the log (journalctl -u ccagent)"
            impact = [f"sink {name}: the queue is in memory, and is lost with the process"]
            yield Finding(_AREA, subject, "problem", found, fix, impact)


def _check_lock(site: Site) -> Iterator[Finding]:
    directory = site.configuration.settings.lock_directory
    if not directory:
        return
    path = directory.lstrip("/")
    try:
        site.node.owner(path)
        refusal = "" if site.node.is_writable(path) else "this user may not write there"
    except NotHereError:
        refusal = "it does not exist"
        made = find_values(read_unit(site.node), "RuntimeDirectory")
        if directory.rstrip("/") in {f"/run/{name}" for name in made}:
            directory, refusal = f"{directory}: exists only while {_UNIT} runs", ""
    except CcagentError as error:
        refusal = str(error)
    if not refusal:
        yield Finding(_AREA, "lock-directory", "good", directory)
        return
    found, stops = f"{directory}: {refusal}", ["the daemon"]
    fix = "create it for the user of the service (RuntimeDirectory=ccagent)"
    impact = ["ccagent run: does not start"]
    yield Finding(_AREA, "lock-directory", "problem", found, fix, impact, stops)


def list_state_directories(unit: str) -> set[str]:
    """Return the directories below /var/lib that systemd creates for a unit, from its text."""
    return {f"/var/lib/{name}" for name in find_values(unit, "StateDirectory")}


def find_values(unit: str, key: str) -> list[str]:
    """Return the words of all values of a key in a unit's text. An empty value resets the list."""
    found: list[str] = []
    for line in unit.splitlines():
        name, equals, value = line.partition("=")
        if equals and name.strip() == key:
            found = [*found, *value.split()] if value.strip() else []
    return found


def read_unit(node: Node) -> str:
    """Return the text of the service's unit with its drop-ins; empty if it does not exist."""
    texts = (node.read_text(f"{folder}/{_UNIT}") for folder in _FOLDERS)
    parts = [next(filter(None, texts), "")]
    for folder in reversed(_FOLDERS) if parts[0] else ():
        drop_ins = f"{folder}/{_UNIT}.d"
        parts += [node.read_text(f"{drop_ins}/{name}") for name in node.list_names(drop_ins)]
    return "\n".join(parts)


_HOME = "/etc/ccagent/"
"""Directory of the service's configuration."""

_SECONDS = 5.0
_OUTPUT_LIMIT = 1024 * 1024
_REFUSED = """
for path; do
    if [ ! -w "$path" ] || { [ -d "$path" ] && [ ! -x "$path" ]; }; then printf '%s\\0' "$path"; fi
done
"""


def find_service_user(site: Site, directory: str) -> pwd.struct_passwd | None:
    """Return the user of the service if root runs the doctor, and the service has another user.

    For the service's configuration this is the unit's user, else the owner of the directory.
    """
    if not site.node.is_live or os.geteuid() != 0:
        return None
    named = find_values(read_unit(site.node), "User")
    try:
        if named and site.configuration.place.startswith(_HOME):
            user = pwd.getpwnam(named[-1])
        else:
            user = pwd.getpwuid(site.node.owner(directory.lstrip("/")))
    except (KeyError, CcagentError):
        return None
    return user if user.pw_uid else None


def find_unwritable(user: pwd.struct_passwd, paths: Sequence[str]) -> list[str]:
    """Return the paths that a user cannot write, or enter if it is a directory.

    A process of this user asks the kernel, because access control lists and mounts also matter.
    Raise ProgramError if the process can't be run.
    """
    try:
        output = run(
            ["/bin/sh", "-c", _REFUSED, "sh", *paths],
            time_limit=_SECONDS,
            output_limit=_OUTPUT_LIMIT,
            user=ProgramUser(user.pw_uid, user.pw_gid, os.getgrouplist(user.pw_name, user.pw_gid)),
        )
    except CcagentError as error:
        raise ProgramError(f"cannot ask as user {user.pw_name}: {error}") from error
    return [os.fsdecode(path) for path in output.split(b"\0") if path]
