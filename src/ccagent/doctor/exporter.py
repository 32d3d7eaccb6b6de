"""Checks of the Prometheus endpoint: its files, its addresses, and who may ask."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from ccagent.doctor.finding import Finding
from ccagent.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.doctor.agent_checks import Site
    from ccagent.transports.prometheus.settings import Address, ExporterSettings

AREA = "exporter"
_IMPACT = ["exporter: Prometheus gets nothing"]
_PATIENCE = 1.0


def check_exporter(site: Site) -> Iterator[Finding]:
    """Check the endpoint, where one is configured."""
    settings = site.configuration.exporter
    if settings is None:
        return
    yield _check_files(settings)
    for address in settings.addresses():
        yield _check_address(address)
    if settings.insecure and not all(address.is_loopback for address in settings.addresses()):
        yield Finding(
            AREA,
            "exporter.insecure",
            "problem",
            "whoever reaches this node may read all metrics, or read along",
            "certificate-file and users-file, or client-ca-file, instead of insecure = true",
        )


def _check_files(settings: ExporterSettings) -> Finding:
    """Read the certificate and the users as the daemon does."""
    from ccagent.transports.prometheus.service import ExporterService

    try:
        ExporterService(settings)
    except ConfigurationError as error:
        fix = "make the file, readable by the daemon's user and not by others"
        stops = ["exporter"]
        return Finding(AREA, "exporter files", "problem", str(error), fix, _IMPACT, stops)
    parts = [
        "TLS" if settings.certificate_file else "no TLS",
        "a password" if settings.users_file else "no password",
    ]
    if settings.client_ca_file:
        parts.append("certificates of clients")
    return Finding(AREA, "exporter files", "good", ", ".join(parts))


def _check_address(address: Address) -> Finding:
    """Connect to an address; nothing is sent."""
    host = address.host or "localhost"
    subject = f"exporter {address.host or '*'}:{address.port}"
    try:
        socket.create_connection((host, address.port), _PATIENCE).close()
    except OSError as error:
        fix = "start the daemon, or look into its log: another program may have had the port"
        found = f"nobody listens: {error.strerror or error}"
        return Finding(AREA, subject, "missing", found, fix, _IMPACT)
    return Finding(AREA, subject, "good", "somebody listens")
