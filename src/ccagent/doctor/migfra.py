"""Checks of the migration framework: its library, this node's libvirt, its policy."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ccagent.doctor.finding import Finding, Site
from ccagent.machines.hypervisor import Hypervisor, HypervisorError
from ccagent.machines.policy import MachinePolicy
from ccagent.machines.settings import MigfraSettings

if TYPE_CHECKING:
    from collections.abc import Iterator


AREA = "migfra"
_IMPACT = ["migfra: every task is answered with an error"]
_INSTALL = "apt-get install python3-libvirt, or pip install libvirt-python (needs libvirt-dev)"


def check_migfra(site: Site) -> Iterator[Finding]:
    """Check what the migration framework needs, if it is configured."""
    settings = site.configuration.table(MigfraSettings)
    if settings is None:
        return
    if find_spec("libvirt") is None:
        found = "the library libvirt-python is missing"
        yield Finding(AREA, "libvirt-python", "problem", found, _INSTALL, _IMPACT)
    elif site.node.is_live:
        yield _check_daemon(site, settings)
    allow = settings.allow
    if not (allow.tasks and allow.machines):
        found = "migfra.allow names no tasks or no machines"
        yield Finding(AREA, "migfra.allow", "missing", found, "name both", _IMPACT)
    templates = allow.templates if allow.xml == "templates" else ""
    for key, path in (("templates", templates), ("images", allow.images)):
        if path and not os.path.isdir(path):
            found = f"{path}: there is no such directory"
            impact = ["migfra: no machine can be started from its files"]
            yield Finding(AREA, f"migfra.allow.{key}", "problem", found, "make it", impact)


def _check_daemon(site: Site, settings: MigfraSettings) -> Finding:
    """Check that this user may use libvirt, and which machines the policy names."""
    hypervisor = Hypervisor(settings.hypervisor, site.node.hostname)
    try:
        names = hypervisor.list_active()
    except HypervisorError as error:
        fix = "start libvirtd; its socket must be open to the user of the service"
        return Finding(AREA, "libvirt", "problem", str(error), fix, _IMPACT)
    finally:
        hypervisor.close()
    policy = MachinePolicy(settings)
    allowed = sum(map(policy.allows_machine, names))
    found = f"{settings.hypervisor}: {len(names)} machines run, the policy names {allowed} of them"
    return Finding(AREA, "libvirt", "good", found)
