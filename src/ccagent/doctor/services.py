"""Checks of the optional services.

The Prometheus endpoint: files, addresses, access rights. The control service: readable and settable
controls, and missing ones. The migration framework: its library, this node's libvirt, its policy.
"""

from __future__ import annotations

import os
import socket
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ccagent.controls.control import find_features
from ccagent.controls.settings import ControlsSettings, standard_classes
from ccagent.doctor.finding import Finding, Site
from ccagent.errors import CcagentError, ConfigurationError, NotPermittedError
from ccagent.exporter.settings import Address, ExporterSettings
from ccagent.machines.hypervisor import Hypervisor, HypervisorError
from ccagent.machines.policy import MachinePolicy
from ccagent.machines.settings import MigfraSettings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ccagent.controls.control import Control
    from ccagent.exporter.collector import Collector
    from ccagent.machine.checks import State

_EXPORTER, _CONTROLS, _MIGFRA = "exporter", "controls", "migfra"
"""Areas of findings."""

_NO_METRICS = ["exporter: Prometheus gets nothing"]
_PATIENCE = 1.0
_SOON = 7 * 86400.0
"""A certificate is a problem if it expires within this number of seconds."""

_NO_MACHINES = ["migfra: every task is answered with an error"]
_INSTALL = "apt-get install python3-libvirt, or pip install libvirt-python (needs libvirt-dev)"


def check_exporter(site: Site) -> Iterator[Finding]:
    """Check the endpoint, if it is configured."""
    settings = site.configuration.table(ExporterSettings)
    if settings is None:
        return
    files = _check_files(settings)
    yield files
    if settings.certificate_file and files.state == "good":
        yield _check_certificate(settings)
    if settings.gpu_job_directory:
        yield _check_directory(settings.gpu_job_directory)
    if settings.textfile_directory and not os.path.isdir(settings.textfile_directory):
        found = f"{settings.textfile_directory}: there is no such directory"
        impact = ["exporter: no metrics of files *.prom"]
        yield Finding(_EXPORTER, "exporter.textfile-directory", "problem", found, "make it", impact)
    for address in settings.addresses():
        yield _check_address(address)
    if settings.insecure and not all(address.is_loopback for address in settings.addresses()):
        found = "any user of the network may read all metrics, or intercept them"
        fix = "certificate-file and users-file, or client-ca-file, instead of insecure = true"
        yield Finding(_EXPORTER, "exporter.insecure", "problem", found, fix)


def check_exporter_names(site: Site) -> Iterator[Finding]:
    """Read the main source of a set of names, such as squeue of slurm. It may have no data here."""
    settings = site.configuration.table(ExporterSettings)
    if settings is None:
        return
    from ccagent.exporter.collector import make_collectors
    from ccagent.exporter.settings import list_collectors
    from ccagent.exporter.sources import NodeSources

    sources = NodeSources(settings)
    try:
        for name, collectors in make_collectors(settings, sources).items():
            is_single = len(list_collectors(name)) == 1
            for collector in collectors:
                if is_single or collector.name == name:
                    yield _check_collector(site, name, collector)
    finally:
        sources.close()


def _check_collector(site: Site, name: str, collector: Collector) -> Finding:
    subject = f"exporter names {name}"
    try:
        families = sum(bool([*rows]) for _, rows in collector.collect(site.node))
    except CcagentError as error:
        fix = f"make what it reads available, or leave {name!r} out of exporter.names"
        impact = [f"exporter: no series of {name}"]
        return Finding(_EXPORTER, subject, "missing", str(error), fix, impact)
    finally:
        collector.close()
    return Finding(_EXPORTER, subject, "good", f"{families} families")


def _check_files(settings: ExporterSettings) -> Finding:
    """Read the certificate and the users as the daemon does."""
    from ccagent.exporter.service import ExporterService

    try:
        ExporterService(settings)
    except ConfigurationError as error:
        fix = "make the file, readable by the daemon's user and not by others"
        stops = ["exporter"]
        return Finding(_EXPORTER, "exporter files", "problem", str(error), fix, _NO_METRICS, stops)
    parts = [
        "TLS" if settings.certificate_file else "no TLS",
        "a password" if settings.users_file else "no password",
    ]
    if settings.client_ca_file:
        parts.append("certificates of clients")
    return Finding(_EXPORTER, "exporter files", "good", ", ".join(parts))


def _check_certificate(settings: ExporterSettings) -> Finding:
    from ccagent.config.secret import secret_path
    from ccagent.exporter.access import find_certificate_end

    subject = "exporter certificate"
    fix = "renew it; the daemon reads renewed files by itself"
    try:
        end = find_certificate_end(settings.certificate_file, secret_path(settings.key_file))
    except ConfigurationError as error:
        return Finding(_EXPORTER, subject, "problem", str(error), fix, _NO_METRICS)
    found = f"ends on {time.strftime('%Y-%m-%d', time.gmtime(end))}"
    if end - time.time() < _SOON:
        impact = ["exporter: soon Prometheus gets nothing"]
        return Finding(_EXPORTER, subject, "problem", found, fix, impact)
    return Finding(_EXPORTER, subject, "good", found)


def _check_directory(path: str) -> Finding:
    subject = "exporter.gpu-job-directory"
    if os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK):
        return Finding(_EXPORTER, subject, "good", path)
    found = f"{path}: there is no such directory that this user may write"
    fix = "make it, and give it to the daemon's user"
    impact = ["exporter: dcgm-exporter lacks the jobs of cards"]
    return Finding(_EXPORTER, subject, "problem", found, fix, impact)


def _check_address(address: Address) -> Finding:
    """Connect to an address, without sending data."""
    host = address.host or "localhost"
    subject = f"exporter {address.host or '*'}:{address.port}"
    try:
        socket.create_connection((host, address.port), _PATIENCE).close()
    except OSError as error:
        fix = "start the daemon, or look into its log: another program may have had the port"
        found = f"no process listens: {error.strerror or error}"
        return Finding(_EXPORTER, subject, "missing", found, fix, _NO_METRICS)
    return Finding(_EXPORTER, subject, "good", "a process listens")


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
    """Return the result for all classes of controls."""
    there = [
        f"{category} {len(controls)} ({sum(c.is_writable for c in controls)} can be set)"
        for category, controls in found.items()
        if controls
    ]
    missing = [f"{name}: {needs[name]}" for name, controls in found.items() if not controls]
    fix = f"for others: {'; '.join(missing)}" if missing else ""
    state: State = "good" if there else "missing"
    return Finding(_CONTROLS, "controls", state, ", ".join(there) or "none", fix)


def assess_policy(
    settings: ControlsSettings, controls: Mapping[str, Sequence[Control]], needs: Mapping[str, str]
) -> Iterator[Finding]:
    """Yield a problem for each allowed control that this machine lacks."""
    settable = {c.full_name for each in controls.values() for c in each if c.is_writable}
    for name in settings.allow:
        category = name.partition(".")[0]
        if name in settable or category == "config":
            continue
        found = "allowed by [controls.allow], not on this machine"
        fix = f"it needs {needs[category]}" if category in needs else ""
        yield Finding(_CONTROLS, f"control {name}", "missing", found, fix)


def _changes(settings: ControlsSettings) -> Iterator[Finding]:
    from ccagent.controls.journal import read_changes

    directory, subject = settings.state_directory, "changes in effect"
    try:
        changes = read_changes(directory)
    except FileNotFoundError:
        return
    except (OSError, NotPermittedError) as error:
        reason = f"{directory}: {error.strerror}" if isinstance(error, OSError) else str(error)
        fix = "run the doctor as root: only root may read the control service's files"
        yield Finding(_CONTROLS, subject, "problem", reason, fix)
        return
    names = ", ".join(f"{change.control}@{change.device}" for change in changes[:5])
    found = f"{len(changes)}: {names}" if changes else "none"
    fix = "ccagent control restore puts them back" if changes else ""
    yield Finding(_CONTROLS, subject, "good", found, fix)


def check_migfra(site: Site) -> Iterator[Finding]:
    """Check what the migration framework needs, if it is configured."""
    settings = site.configuration.table(MigfraSettings)
    if settings is None:
        return
    if find_spec("libvirt") is None:
        found = "the library libvirt-python is missing"
        yield Finding(_MIGFRA, "libvirt-python", "problem", found, _INSTALL, _NO_MACHINES)
    elif site.node.is_live:
        yield _check_daemon(site, settings)
    allow = settings.allow
    if not (allow.tasks and allow.machines):
        found = "migfra.allow names no tasks or no machines"
        yield Finding(_MIGFRA, "migfra.allow", "missing", found, "name both", _NO_MACHINES)
    templates = allow.templates if allow.xml == "templates" else ""
    for key, path in (("templates", templates), ("images", allow.images)):
        if path and not os.path.isdir(path):
            found = f"{path}: there is no such directory"
            impact = ["migfra: no machine can be started from its files"]
            yield Finding(_MIGFRA, f"migfra.allow.{key}", "problem", found, "make it", impact)


def _check_daemon(site: Site, settings: MigfraSettings) -> Finding:
    """Check that this user may use libvirt, and which machines the policy names."""
    hypervisor = Hypervisor(settings.hypervisor, site.node.hostname)
    try:
        names = hypervisor.list_active()
    except HypervisorError as error:
        fix = "start libvirtd; its socket must be open to the user of the service"
        return Finding(_MIGFRA, "libvirt", "problem", str(error), fix, _NO_MACHINES)
    finally:
        hypervisor.close()
    policy = MachinePolicy(settings)
    allowed = sum(map(policy.allows_machine, names))
    found = f"{settings.hypervisor}: {len(names)} machines run, the policy names {allowed} of them"
    return Finding(_MIGFRA, "libvirt", "good", found)
