"""Whether the daemon could take its lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.doctor.finding import Finding
from ccagent.errors import CcagentError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.doctor.demands import Site


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
    return Finding(area="daemon", subject="lock-directory", state="good", found=directory)
