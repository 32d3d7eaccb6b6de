"""Slurm's REST API as a source of jobs, queue, partitions and nodes; the keys of all sources."""

from __future__ import annotations

import os
from typing import Annotated, Literal

from msgspec import Meta

from ccagent.agents.base import AgentSettings
from ccagent.config import common_keys
from ccagent.config.duration import Duration
from ccagent.config.secret import read_secret
from ccagent.errors import ConfigurationError
from ccagent.net.tls import check_network
from ccagent.net.urls import split_url

VERSION = r"v0\.0\.\d{2,3}"
"""The name of a version of the API."""

_SOCKET = "unix:"


class SlurmSourceSettings(AgentSettings, frozen=True, kw_only=True):
    """The keys that [agents.jobs] and [agents.cluster] share."""

    source: Annotated[
        Literal["programs", "slurmrestd"],
        Meta(description="'programs': sacct, squeue, ...; 'slurmrestd': Slurm's REST API"),
    ] = "programs"
    url: Annotated[
        str, Meta(description="slurmrestd: https://HOST:PORT, http://HOST:PORT or unix:/PATH")
    ] = "unix:/run/slurmrestd/slurmrestd.socket"
    jwt_file: Annotated[
        str, Meta(description="file with Slurm's token (JWT); read for each request")
    ] = ""
    user: Annotated[
        str, Meta(description="Slurm's user of the token; empty: the user that the token names")
    ] = ""
    api_version: Annotated[
        str,
        Meta(
            pattern=rf"^({VERSION})?$",
            description="version of the API, as v0.0.41; empty: the newest known one of the server",
        ),
    ] = ""
    ca_file: common_keys.CaFile = ""
    certificate_file: common_keys.CertificateFile = ""
    key_file: common_keys.KeyFile = ""
    insecure: common_keys.Insecure = False
    allow_cleartext: common_keys.AllowCleartext = False
    command_time_limit: Annotated[
        Duration, Meta(description="time after which a program is killed, or a request ends")
    ] = Duration("5m")


def socket_path(settings: SlurmSourceSettings) -> str:
    """Return the path of a Unix socket, also of `unix:///PATH`; empty for another URL."""
    if not settings.url.startswith(_SOCKET):
        return ""
    return "/" + settings.url.removeprefix(_SOCKET).lstrip("/")


def check_source(agent: str, settings: SlurmSourceSettings) -> None:
    """Check the keys of slurmrestd. Raise ConfigurationError."""
    if settings.source != "slurmrestd":
        return
    try:
        _check_rest(settings)
    except ConfigurationError as error:
        raise ConfigurationError(*(f"agents.{agent}.{each}" for each in error.problems)) from error


def _check_rest(settings: SlurmSourceSettings) -> None:
    if settings.url.startswith(_SOCKET):
        if not os.path.isabs(settings.url.removeprefix(_SOCKET)):
            raise ConfigurationError("url: expected unix:/PATH")
        if settings.ca_file or settings.certificate_file or settings.insecure:
            raise ConfigurationError("ca-file, certificate-file and insecure are for https only")
        if settings.jwt_file:
            read_secret(settings.jwt_file)
        return
    target = split_url(settings.url)
    if target.scheme not in {"http", "https"} or target.query:
        raise ConfigurationError("url: expected https://HOST:PORT, http://HOST:PORT or unix:/PATH")
    check_network(
        settings,
        [target.hostname or ""],
        is_encrypted=target.scheme == "https",
        secret=settings.jwt_file,
    )
