"""The configuration: read as TOML or from ClusterCockpit's config.json, and checked; the status."""

from __future__ import annotations

import json
import math
import os
import re
import ssl
import time
from http.client import responses
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from msgspec import structs

from ccagent.config.duration import Duration
from ccagent.config.files import convert
from ccagent.config.settings import as_list, as_table
from ccagent.errors import CcagentError, ConfigurationError, NotHereError
from ccagent.log import printable
from ccagent.net.http_client import HTTP_ERRORS, HttpAnswer, HttpConnection
from ccagent.net.tls import make_unverified_context
from ccagent.net.urls import Server
from ccagent.stores.metrics.settings import (
    StoreSettings,
    StoreTlsSettings,
    check_settings,
    parse_toml,
    read_text,
    split_address,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_ANSWER_SECONDS = 5.0
_LARGEST = 1 << 20


def find_problems(settings: StoreSettings) -> list[str]:
    """Return the problems that would prevent a start, one sentence each."""
    checks: list[Callable[[StoreSettings], object]] = [
        _check_token_key, make_tls_context, _check_nats, _check_engine, _check_archive,
        _check_directories, _check_pages, _check_jobs,
    ]  # fmt: skip
    problems: list[str] = []
    for check in checks:
        try:
            check(settings)
        except ConfigurationError as error:
            problems += error.problems
        except CcagentError as error:
            problems.append(str(error))
    return problems


def make_tls_context(settings: StoreSettings) -> ssl.SSLContext | None:
    """Return the TLS context for HTTPS; None for HTTP. Raise ConfigurationError."""
    certificate, key = settings.tls.certificate, settings.tls.key
    if not certificate:
        return None
    for name, path in (("certificate", certificate), ("key", key)):
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            raise ConfigurationError(f"tls.{name}: {path}: {error.strerror}") from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without a password OpenSSL would prompt for the password of an encrypted key.
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ssl.SSLError, ValueError) as error:
        raise ConfigurationError(
            f"tls: {certificate} and {key}: {_explain_tls(error)}; expected a chain in PEM and its"
            " key without a password"
        ) from error
    return context


def _explain_tls(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason).lower().replace("_", " ") if reason else str(error)


def _check_token_key(settings: StoreSettings) -> None:
    if settings.jwt_public_key:
        from ccagent.stores.metrics.tokens import TokenVerifier

        TokenVerifier(settings.jwt_public_key, time.time)


def _check_nats(settings: StoreSettings) -> None:
    if settings.nats.subscriptions:
        from ccagent.stores.metrics.nats_receiver import read_client

        try:
            read_client(settings.nats)
        except ConfigurationError as error:
            raise ConfigurationError(f"nats: {error}") from error


def _check_pages(settings: StoreSettings) -> None:
    if settings.web.proxies:
        settings.web.read_secret()


def _check_jobs(settings: StoreSettings) -> None:
    if settings.jobs_database:
        from ccagent.stores.database import make_database_conninfo

        make_database_conninfo(settings.jobs_database, settings.jobs_password_file)


def _check_engine(settings: StoreSettings) -> None:
    if settings.engine == "victoria-metrics":
        from ccagent.stores.metrics.victoria import VictoriaEngine

        VictoriaEngine(settings.engine_url)


def _check_archive(settings: StoreSettings) -> None:
    if settings.archive.directory and find_spec("pyarrow") is None:
        from ccagent.machine.interpreter import install_command

        raise ConfigurationError(f"archive.directory: needs pyarrow: {install_command('pyarrow')}")


def _check_directories(settings: StoreSettings) -> None:
    """Raise ConfigurationError if an existing directory is not writable."""
    problems: list[str] = []
    for key, path in (
        ("data", settings.data),
        ("checkpoints.directory", settings.checkpoints.directory),
        ("archive.directory", settings.archive.directory),
    ):
        if not path or not os.path.lexists(path):
            continue
        if not os.path.isdir(path):
            problems.append(f"{key}: {path}: not a directory")
        elif not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            problems.append(f"{key}: {path}: not readable and writable by this user")
    if problems:
        raise ConfigurationError(*problems)


_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600}
_FORMATS = {"wal": "binary", "json": "json"}

_KNOWN = {
    "main": {
        "addr", "https-cert-file", "https-key-file", "jwt-public-key", "user", "group",
        "backend-url", "debug",
    },
    "nats": {"address", "username", "password", "creds-file-path"},
    "metric-store": {
        "retention-in-memory", "memory-cap", "num-workers", "checkpoint-interval", "checkpoints",
        "cleanup", "nats-subscriptions",
    },
}  # fmt: skip


def convert_reference(text: str, place: str) -> StoreSettings:
    """Return the settings of a config.json. Raise ConfigurationError.

    ccagent's log is placed beside the checkpoints.
    """
    try:
        table = as_table(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{place}: not JSON: {error}") from error
    problems = [
        f"{place}: {section}.{key}: there is no such key"
        for section, keys in _KNOWN.items()
        for key in as_table(table.get(section)).keys() - keys
    ]
    problems += [
        f"{place}: {key}: there is no such key" for key in table.keys() - {*_KNOWN, "metrics"}
    ]
    if problems:
        raise ConfigurationError(*sorted(problems))
    main, store, nats = (as_table(table.get(name)) for name in ("main", "metric-store", "nats"))
    files = as_table(store.get("checkpoints"))
    directory = str(files.get("directory", "./var/checkpoints"))
    cleanup = as_table(store.get("cleanup"))
    is_archived = cleanup.get("mode") == "archive"
    metrics = {name: _metric(as_table(one)) for name, one in as_table(table.get("metrics")).items()}
    try:
        found: dict[str, Any] = {
            "data": f"{directory.rstrip('/')}.ccagent",
            "listen": str(main.get("addr", "localhost:8080")),
            "retention": _duration(store["retention-in-memory"]),
            "memory-cap": f"{int(store['memory-cap'])}GB",
            "jwt-public-key": str(main.get("jwt-public-key") or ""),
            "backend-url": str(main.get("backend-url") or ""),
            "metrics": metrics,
            "checkpoints": {
                "format": _FORMATS[files.get("file-format", "wal")],
                "directory": directory,
                "interval": _duration(store.get("checkpoint-interval", "12h")),
            },
            "archive": {"directory": str(cleanup["directory"]) if is_archived else ""},
            "tls": {
                "certificate": str(main.get("https-cert-file") or ""),
                "key": str(main.get("https-key-file") or ""),
            },
        }
    except KeyError as error:
        raise ConfigurationError(f"{place}: {error.args[0]}: missing or unknown value") from error
    except (ValueError, TypeError, OverflowError) as error:
        raise ConfigurationError(f"{place}: {error}") from error
    if nats.get("address"):
        found["nats"] = _nats(nats, store)
    return convert(found, StoreSettings, "", place=place)


def _metric(one: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"frequency": f"{one.get('frequency', 0)}s"}
    if one.get("aggregation"):
        found["aggregation"] = one["aggregation"]
    return found


def _nats(nats: dict[str, Any], store: dict[str, Any]) -> dict[str, Any]:
    address = str(nats["address"])
    return {
        "url": address if "://" in address else f"nats://{address}",
        "user": str(nats.get("username") or ""),
        "password": str(nats.get("password") or ""),
        "creds-file": str(nats.get("creds-file-path") or ""),
        "subscriptions": [
            {
                "subject": str(one.get("subscribe-to", "")),
                "cluster": str(one.get("cluster-tag", "")),
            }
            for one in (as_table(each) for each in as_list(store.get("nats-subscriptions")))
        ],
    }


def _duration(text: object) -> str:
    """Return a Go duration, such as `1h30m`, in whole seconds. Raise ValueError."""
    parts = _DURATION.findall(str(text))
    if not parts or "".join(number + unit for number, unit in parts) != str(text):
        raise ValueError(f"{text!r} is not a duration such as '48h' or '1h30m'")
    seconds = math.ceil(sum(float(number) * _SECONDS[unit] for number, unit in parts))
    return str(Duration(f"{seconds}s"))


def read_settings(path: str | None, changes: dict[str, Any] | None = None) -> StoreSettings:
    """Read and check a configuration: TOML, or the reference's JSON. Raise ConfigurationError.

    path: None: the defaults. changes: values from the command line; they replace the file's. Those
    of `metrics` and `web` are added to the file's.
    """
    found = StoreSettings() if path is None else _read_file(path)
    changed = dict(changes or {})
    changed["metrics"] = found.metrics | changed.get("metrics", {})
    changed["web"] = structs.replace(found.web, **changed.get("web", {}))
    return check_settings(structs.replace(found, **changed), path or "command line")


def _read_file(path: str) -> StoreSettings:
    text = read_text(path)
    if text.lstrip().startswith("{"):
        return convert_reference(text, path)
    return convert(parse_toml(text, path), StoreSettings, "", place=path)


def ask_store(listen: str, tls: StoreTlsSettings, path: str) -> HttpAnswer:
    """Return the answer of the store that runs at an address. Raise NotHereError."""
    host, port = split_address(listen)
    context = make_unverified_context() if tls.certificate else None
    server = Server(host or "localhost", port)
    connection = HttpConnection(server, context, _ANSWER_SECONDS, largest=_LARGEST)
    try:
        return connection.get(path, {})
    except HTTP_ERRORS as error:
        reason = connection.explain(error)
        raise NotHereError(f"no store answers at {listen}: {reason}") from error
    finally:
        connection.close()


def read_status(settings: StoreSettings) -> tuple[str, bool]:
    """Return a table of the store's metrics, and whether a store answers."""
    try:
        answer = ask_store(settings.listen, settings.tls, "/metrics")
    except NotHereError as error:
        return f"{error}\n", False
    if answer.status == 401:
        return f"a store runs at {settings.listen}; its numbers need a token\n", True
    if answer.status != 200:
        reason = responses.get(answer.status, "")
        return f"{settings.listen}: {answer.status} {reason}\n", False
    return printable_lines(answer.body), True


def printable_lines(text: bytes) -> str:
    """Return metrics in text format as a table."""
    lines = [
        line.removeprefix("ccagent_store_").rsplit(" ", 1)
        for line in text.decode("utf-8", "replace").splitlines()
        if line and not line.startswith("#")
    ]
    return "".join(f"{printable(name):26} {printable(''.join(value))}\n" for name, *value in lines)
