"""Whether the energy counters of RAPL can be read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccagent.doctor.finding import Finding
from ccagent.errors import CcagentError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ccagent.doctor.demands import Site

SUBJECT = "RAPL"

_POWERCAP = "sys/class/powercap"
_ZONE = re.compile(r"(?:intel|amd)-rapl:[0-9]+(?::[0-9]+)?", re.ASCII)
_RULE = (
    'SUBSYSTEM=="powercap", ACTION=="add", KERNEL=="*-rapl:*", '
    'RUN+="/bin/chgrp ccagent %S%p/energy_uj", RUN+="/bin/chmod 0440 %S%p/energy_uj"'
)


def check_energy(site: Site) -> Iterator[Finding]:
    """Tell of the zones below /sys/class/powercap."""
    node = site.node
    try:
        names = sorted(filter(_ZONE.fullmatch, node.list(_POWERCAP)))
    except CcagentError:
        names = []
    yield judge_zones({name: node.is_readable(f"{_POWERCAP}/{name}/energy_uj") for name in names})


def judge_zones(zones: Mapping[str, bool]) -> Finding:
    """Judge the zones, by name whether this user may read their counters."""
    refused = [name for name, readable in zones.items() if not readable]
    if refused:
        return Finding(
            area="power",
            subject=SUBJECT,
            state="problem",
            found=f"this user may not read energy_uj of {len(refused)} of {len(zones)} zones",
            fix=f"a udev rule: {_RULE}; or CAP_DAC_READ_SEARCH for the service",
        )
    if zones:
        return Finding(
            area="power", subject=SUBJECT, state="good", found=f"{len(zones)} zones can be read"
        )
    return Finding(
        area="power",
        subject=SUBJECT,
        state="missing",
        found=f"no zones in /{_POWERCAP}",
        fix="on hardware: modprobe intel_rapl_msr; virtual machines have none",
    )
