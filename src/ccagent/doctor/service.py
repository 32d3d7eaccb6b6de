"""Checks of the daemon: its lock, its directories, and the status of a running one.

systemd creates /run/NAME at the start of a unit with `RuntimeDirectory=NAME`, and removes it at the
stop (systemd.exec(5)). Then a missing directory is not a problem.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.config.unsafe_places import unsafe_places
from ccagent.doctor.finding import Finding
from ccagent.errors import CcagentError, NotHereError
from ccagent.machine.checks import list_names, read_text
from ccagent.service.status_socket import read_status

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ccagent.counters import SinkCounters
    from ccagent.doctor.agent_checks import Site
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
    for key, reason in unsafe_places(site.configuration):
        yield Finding(
            _AREA,
            key,
            "problem",
            reason,
            "use a directory that only root and the user of the service can write to",
            ["files of other users there are refused: a lock, queue or file may not work"],
        )


def assess_sinks(sinks: Mapping[str, SinkCounters]) -> Iterator[Finding]:
    """Yield a problem for each error of a sink that a running daemon reports."""
    for name, counters in sinks.items():
        if counters.restarts:
            yield Finding(
                _AREA,
                f"thread of sink {name}",
                "problem",
                f"continued after {counters.restarts} unforeseen errors since it started",
                "look for the error in the log (journalctl -u ccagent) and report it",
                [f"sink {name}: pauses after each error; messages stay in the queue"],
            )
        if counters.queue_error:
            yield Finding(
                _AREA,
                f"queue of sink {name}",
                "problem",
                counters.queue_error,
                "see the finding `outbox`, and the log (journalctl -u ccagent)",
                [f"sink {name}: the queue is in memory, and is lost with the process"],
            )


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
        if directory.rstrip("/") in list_runtime_directories(read_unit(site.node)):
            directory, refusal = f"{directory}: exists only while {_UNIT} runs", ""
    except CcagentError as error:
        refusal = str(error)
    if not refusal:
        yield Finding(_AREA, "lock-directory", "good", directory)
        return
    yield Finding(
        _AREA,
        "lock-directory",
        "problem",
        f"{directory}: {refusal}",
        "create it for the user of the service (RuntimeDirectory=ccagent)",
        ["ccagent run: does not start"],
        ["the daemon"],
    )


def list_runtime_directories(unit: str) -> set[str]:
    """Return the directories below /run that systemd creates for a unit, from its text."""
    return {f"/run/{name}" for name in find_values(unit, "RuntimeDirectory")}


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
    texts = (read_text(node, f"{folder}/{_UNIT}") for folder in _FOLDERS)
    parts = [next(filter(None, texts), "")]
    for folder in reversed(_FOLDERS) if parts[0] else ():
        drop_ins = f"{folder}/{_UNIT}.d"
        parts += [read_text(node, f"{drop_ins}/{name}") for name in list_names(node, drop_ins)]
    return "\n".join(parts)
