"""Checks of the control service: readable and settable controls, and missing ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.controls.catalogue import find_features, standard_classes
from ccagent.controls.settings import ControlsSettings
from ccagent.doctor.finding import Finding
from ccagent.errors import NotPermittedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ccagent.controls.control import Control
    from ccagent.doctor.agent_checks import Site

AREA = "controls"


def check_controls(site: Site) -> Iterator[Finding]:
    """Check the classes of controls, and the controls in the policy."""
    classes = standard_classes()
    found: dict[str, list[Control]] = {}
    for each in classes:
        found[each.category] = [f.control for f in find_features(site.node, [each])]
    needs = {each.category: each.needs for each in classes}
    yield assess_controls(found, needs)
    settings = site.configuration.table(ControlsSettings)
    if settings is not None:
        yield from assess_policy(settings, found, needs)
        yield from _changes(settings)


def assess_controls(found: Mapping[str, Sequence[Control]], needs: Mapping[str, str]) -> Finding:
    """Yield the result for each class of controls."""
    there = [
        f"{category} {len(controls)} ({sum(c.is_writable for c in controls)} can be set)"
        for category, controls in found.items()
        if controls
    ]
    missing = [f"{name}: {needs[name]}" for name, controls in found.items() if not controls]
    return Finding(
        area=AREA,
        subject="controls",
        state="good" if there else "missing",
        found=", ".join(there) or "none",
        fix=f"for others: {'; '.join(missing)}" if missing else "",
    )


def assess_policy(
    settings: ControlsSettings, found: Mapping[str, Sequence[Control]], needs: Mapping[str, str]
) -> Iterator[Finding]:
    """Yield a problem for each allowed control that this machine lacks."""
    settable = {c.full_name for controls in found.values() for c in controls if c.is_writable}
    for name in settings.allow:
        category = name.partition(".")[0]
        if name in settable or category == "config":
            continue
        yield Finding(
            area=AREA,
            subject=f"control {name}",
            state="missing",
            found="allowed by [controls.allow], not on this machine",
            fix=f"it needs {needs[category]}" if category in needs else "",
        )


def _changes(settings: ControlsSettings) -> Iterator[Finding]:
    from ccagent.controls.journal import read_changes

    directory = settings.state_directory
    try:
        changes = read_changes(directory)
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            yield _unreadable(f"{directory}: {error.strerror}")
        return
    except NotPermittedError as error:
        yield _unreadable(str(error))
        return
    names = ", ".join(f"{change.control}@{change.device}" for change in changes[:5])
    yield Finding(
        area=AREA,
        subject="changes in effect",
        state="good",
        found=f"{len(changes)}: {names}" if changes else "none",
        fix="ccagent control restore puts them back" if changes else "",
    )


def _unreadable(reason: str) -> Finding:
    return Finding(
        area=AREA,
        subject="changes in effect",
        state="problem",
        found=reason,
        fix="run the doctor as root: only root may read the control service's files",
    )
