"""Targets for Prometheus' file_sd_configs: the nodes that Slurm or a metric store knows."""

from __future__ import annotations

import json
import os
import time
from http.client import HTTPException
from typing import TYPE_CHECKING

import msgspec

from ccagent.config.secret import read_secret
from ccagent.errors import ConfigurationError, NotHereError, TransportError
from ccagent.exporter.textfile import write_public
from ccagent.log import printable
from ccagent.machine.slurm_environment import explain_failure, run_slurm
from ccagent.net.error_texts import explain_network_error
from ccagent.net.http_client import HttpConnection
from ccagent.net.tls import make_tls_context
from ccagent.net.urls import server_of_url
from ccagent.transports.http import check_settings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.machine.node import Node
    from ccagent.transports.http import HttpSettings

_SECONDS, _LARGEST = 30.0, 64 << 20
_AGE = 3600
"""Seconds in which a node must have sent a value to be a target."""
_AHEAD = 60
"""Seconds by which the clock of a node may be ahead."""
_SHOWN = 200


class _StoreQuery(msgspec.Struct, frozen=True):
    host: str = ""


class _StoreResult(msgspec.Struct, frozen=True):
    avg: float | None = None


class _StoreAnswer(msgspec.Struct, frozen=True):
    queries: list[_StoreQuery] = []
    results: list[list[_StoreResult]] = []


def read_slurm_nodes(node: Node, sinfo: str) -> list[str]:
    """Return the sorted names of Slurm's nodes, whatever their state.

    Raise NotHereError without sinfo, ProgramError if it fails.
    """
    command = [sinfo, "--all", "--noheader", "--Node", "--format=%n"]
    try:
        content = run_slurm(node, command, time_limit=_SECONDS, output_limit=_LARGEST)
    except NotHereError as error:
        raise NotHereError(explain_failure(error)) from error
    return sorted({*content.decode("utf-8", "replace").split()})


def read_store_nodes(settings: HttpSettings, cluster: str, metric: str) -> list[str]:
    """Return the sorted names of the nodes that have sent a metric in the last hour.

    settings: URL and login of a store with cc-metric-store's interface. Raise ConfigurationError
    for wrong settings, TransportError if the store does not answer the query.
    """
    target = check_settings(settings)
    headers = {"Content-Type": "application/json"}
    if settings.token_file:
        headers["Authorization"] = f"Bearer {read_secret(settings.token_file)}"
    context = make_tls_context(settings) if target.scheme == "https" else None
    server = server_of_url(target)
    place = f"{target.scheme}://{server}"
    now = int(time.time())
    query = json.dumps({
        "cluster": cluster, "from": now - _AGE, "to": now + _AHEAD,
        "for-all-nodes": [metric], "with-stats": True, "with-data": False,
    })  # fmt: skip
    connection = HttpConnection(server, context, _SECONDS, largest=_LARGEST)
    try:
        # ClusterCockpit's store answers queries only as GET, with the query as body.
        path = f"{target.path.rstrip('/')}/api/query/"
        answer = connection.get(path, headers, query.encode())
    except (OSError, HTTPException, UnicodeError) as error:
        raise TransportError(
            f"{place}: {explain_network_error(error, _SECONDS) or error}"
        ) from error
    finally:
        connection.close()
    if answer.status != 200:
        said = printable(answer.body[:_SHOWN].decode("utf-8", "replace").strip())
        raise TransportError(f"{place}: refused the query with status {answer.status}: {said}")
    try:
        found = msgspec.json.decode(answer.body, type=_StoreAnswer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TransportError(f"{place}: not the response of a metric store: {error}") from error
    pairs = zip(found.queries, found.results, strict=False)
    return sorted({query.host for query, each in pairs if any(one.avg is not None for one in each)})


def format_targets(hosts: Iterable[str], port: int, cluster: str) -> str:
    """Return the content of a file for file_sd_configs. Raise ConfigurationError without hosts."""
    targets = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in hosts]
    if not targets:
        raise ConfigurationError(
            f"no node of cluster {cluster or 'without a name'} was found; an existing file is left"
            " as it is"
        )
    labels = {"cluster": cluster} if cluster else {}
    return json.dumps([{"targets": targets, "labels": labels}], indent=1) + "\n"


def write_targets(path: str, content: str) -> None:
    """Replace a file atomically, only if its content changes. Raise TransportError."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            if file.read(_LARGEST) == content:
                return
    except OSError:
        pass
    write_public(os.path.abspath(path), content.encode())
