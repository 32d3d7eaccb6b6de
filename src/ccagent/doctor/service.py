"""Whether the daemon could take its lock, who it runs as, and what a running one says of itself.

systemd makes /run/NAME for a unit with `RuntimeDirectory=NAME` when it starts, and takes it away
when it stops (systemd.exec(5)): that it isn't there says nothing then.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ccagent.daemon.status_socket import read_status
from ccagent.doctor.finding import Finding
from ccagent.errors import CcagentError, NotHereError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ccagent.counters import SinkCounters
    from ccagent.doctor.demands import Site
    from ccagent.machine.node import Node

_UNIT = "ccagent.service"
_FOLDERS = ("etc/systemd/system", "usr/lib/systemd/system", "lib/systemd/system")
"""Where units lie, the one that counts first."""


def check_service(site: Site) -> Iterator[Finding]:
    """Check the lock of the daemon, if it is to take one, and what a running daemon reports."""
    yield from _check_lock(site)
    if site.node.is_live and site.configuration.settings.status_socket:
        try:
            status = read_status(site.configuration.settings.status_socket)
        except CcagentError:
            return  # none runs, or this user may not ask it
        yield from judge_sinks(status.sinks)


def judge_sinks(sinks: Mapping[str, SinkCounters]) -> Iterator[Finding]:
    """Return a problem for each error that a running daemon reports of its sinks."""
    for name, counters in sinks.items():
        if counters.restarts:
            yield Finding(
                area="daemon",
                subject=f"thread of sink {name}",
                state="problem",
                found=f"went on after {counters.restarts} unforeseen errors since it started",
                impact=[f"sink {name}: pauses after each error; messages stay in the queue"],
                fix="look for the error in the log (journalctl -u ccagent) and report it",
            )
        if counters.queue_error:
            yield Finding(
                area="daemon",
                subject=f"queue of sink {name}",
                state="problem",
                found=counters.queue_error,
                impact=[f"sink {name}: messages wait in memory, and are lost with the process"],
                fix="see the finding `outbox`, and the log (journalctl -u ccagent)",
            )


def _check_lock(site: Site) -> Iterator[Finding]:
    directory = site.configuration.settings.lock_directory
    if not directory:
        return
    node = site.node
    path = directory.lstrip("/")
    try:
        node.owner(path)
        refusal = "" if node.is_writable(path) else "this user may not write there"
    except NotHereError:
        if directory.rstrip("/") in runtime_directories(read_unit(node)):
            yield _good(f"{directory}: comes and goes with {_UNIT}")
            return
        refusal = "there is none"
    except CcagentError as error:
        refusal = str(error)
    yield judge_lock(directory, refusal)


def judge_lock(directory: str, refusal: str) -> Finding:
    """Judge the directory of the lock; without it the daemon does not start."""
    if refusal:
        return Finding(
            area="daemon",
            subject="lock-directory",
            state="problem",
            found=f"{directory}: {refusal}",
            impact=["ccagent run: does not start"],
            stops=["the daemon"],
            fix="make it for the user of the service (RuntimeDirectory=ccagent)",
        )
    return _good(directory)


def runtime_directories(unit: str) -> set[str]:
    """Return the directories below /run that systemd makes for a unit, by the text of its file."""
    return {f"/run/{name}" for name in values_of(unit, "RuntimeDirectory")}


def state_directories(unit: str) -> set[str]:
    """Return the directories below /var/lib that systemd makes for a unit."""
    return {f"/var/lib/{name}" for name in values_of(unit, "StateDirectory")}


def values_of(unit: str, key: str) -> list[str]:
    """Return the words of all values of a key in a unit's text; an empty value resets it."""
    found: list[str] = []
    for line in unit.splitlines():
        name, equals, value = line.partition("=")
        if equals and name.strip() == key:
            found = [*found, *value.split()] if value.strip() else []
    return found


def read_unit(node: Node) -> str:
    """Return the text of the service's unit with its drop-ins; empty where there is none."""
    text = ""
    for folder in _FOLDERS:
        try:
            text = node.read(f"{folder}/{_UNIT}").decode("utf-8", "replace")
            break
        except CcagentError:
            continue
    for folder in reversed(_FOLDERS):
        try:
            names = sorted(node.list(f"{folder}/{_UNIT}.d")) if text else []
        except CcagentError:
            continue
        for name in names:
            with contextlib.suppress(CcagentError):
                drop_in = node.read(f"{folder}/{_UNIT}.d/{name}")
                text += "\n" + drop_in.decode("utf-8", "replace")
    return text


def _good(found: str) -> Finding:
    return Finding(area="daemon", subject="lock-directory", state="good", found=found)
