"""Whether this node is a server or a client of Lustre, and how it can be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.agents.lustre.agent import LustreSettings
from ccagent.agents.lustre.jobstats.source import JobstatsSource
from ccagent.doctor.finding import Finding
from ccagent.errors import CcagentError, NotHereError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccagent.doctor.demands import Site
    from ccagent.machine.node import Node

AREA = "lustre"

_CLIENT = ("proc/fs/lustre/llite", "sys/fs/lustre/llite")
_SHOWN = 8


def check_lustre(site: Site) -> Iterator[Finding]:
    """Tell targets with jobstats, and mounted file systems."""
    settings = site.configuration.agents.get("lustre")
    if not isinstance(settings, LustreSettings):
        settings = LustreSettings()
    source = JobstatsSource(
        settings.source, settings.lctl, settings.input, settings.target_time_limit.seconds
    )
    errors: list[CcagentError] = []
    try:
        # The texts themselves are not read.
        targets = [text.name or settings.input for text in source.texts(site.node, errors)]
    except NotHereError:
        targets = []
    except CcagentError as error:
        errors.append(error)
        targets = []
    yield judge_targets(targets, list(dict.fromkeys(map(str, errors))))
    yield judge_client(_mounted(site.node))


def judge_targets(targets: Sequence[str], errors: Sequence[str]) -> Finding:
    """Judge the targets of this server."""
    if errors:
        return Finding(
            area=AREA,
            subject="targets with jobstats",
            state="problem",
            found=f"{len(targets)}; {'; '.join(errors)}",
            fix="let this user run lctl as root does, or read the job_stats files; "
            "`ccagent lustre check` says more",
        )
    if targets:
        more = f" and {len(targets) - _SHOWN} more" if len(targets) > _SHOWN else ""
        return Finding(
            area=AREA,
            subject="targets with jobstats",
            state="good",
            found=f"{', '.join(targets[:_SHOWN])}{more}",
            fix="`ccagent lustre check` tells whether anything is lost between observations",
        )
    return Finding(
        area=AREA,
        subject="targets with jobstats",
        state="missing",
        found="this node serves none",
        fix="the agent lustre belongs on an OSS or MDS",
    )


def judge_client(mounted: Sequence[str]) -> Finding:
    """Judge the file systems that are mounted here."""
    if mounted:
        return Finding(
            area=AREA, subject="mounted Lustre", state="good", found=", ".join(mounted[:_SHOWN])
        )
    return Finding(area=AREA, subject="mounted Lustre", state="missing", found="none")


def _mounted(node: Node) -> list[str]:
    for directory in _CLIENT:
        try:
            if names := sorted(node.list(directory)):
                return names
        except CcagentError:
            continue
    return []
