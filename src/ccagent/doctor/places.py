"""Whether other users can put links or files into the directories that ccagent writes to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.config.unsafe_places import unsafe_places
from ccagent.doctor.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.doctor.demands import Site


def check_places(site: Site) -> Iterator[Finding]:
    """Return a problem for each directory that other users can write to."""
    if not site.node.is_live:
        return
    for key, reason in unsafe_places(site.configuration):
        yield Finding(
            area="daemon",
            subject=key,
            state="problem",
            found=reason,
            impact=["what others put there is refused: a lock, queue or file may not work"],
            fix="use a directory that only root and the user of the service can write to",
        )
