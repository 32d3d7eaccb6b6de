"""Whether the daemon could take its lock.

systemd makes /run/NAME for a unit with `RuntimeDirectory=NAME` when it starts, and takes it away
when it stops (systemd.exec(5)): that it isn't there says nothing then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.doctor.finding import Finding
from ccagent.errors import CcagentError, NotHereError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.doctor.demands import Site
    from ccagent.node import Node

_UNIT = "ccagent.service"
_FOLDERS = ("etc/systemd/system", "usr/lib/systemd/system", "lib/systemd/system")
"""Where units lie, the one that counts first."""


def check_service(site: Site) -> Iterator[Finding]:
    """Tell whether the daemon could take its lock, if it is to."""
    directory = site.configuration.settings.lock_directory
    if not directory:
        return
    node = site.node
    path = directory.lstrip("/")
    try:
        node.owner(path)
        refusal = "" if node.is_writable(path) else "this user may not write there"
    except NotHereError:
        if directory.rstrip("/") in runtime_directories(_unit(node)):
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
            costs=["ccagent run: does not start"],
            stops=["the daemon"],
            advice="make it for the user of the service (RuntimeDirectory=ccagent)",
        )
    return _good(directory)


def runtime_directories(unit: str) -> set[str]:
    """Give the directories that systemd makes for a unit, by the text of its file."""
    found: set[str] = set()
    for line in unit.splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "RuntimeDirectory":
            found |= {f"/run/{name}" for name in value.split()}
    return found


def _unit(node: Node) -> str:
    """Give the text of the service's unit; empty where there is none."""
    for folder in _FOLDERS:
        try:
            return node.read(f"{folder}/{_UNIT}").decode("utf-8", "replace")
        except CcagentError:
            continue
    return ""


def _good(found: str) -> Finding:
    return Finding(area="daemon", subject="lock-directory", state="good", found=found)
