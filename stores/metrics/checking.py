"""Checks of a configuration beyond its syntax: keys, certificates, secrets, libraries."""

from __future__ import annotations

import os
import ssl
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ccagent.errors import CcagentError, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.stores.metrics.settings import StoreSettings


def find_problems(settings: StoreSettings) -> list[str]:
    """Return the problems that would prevent a start, one sentence each."""
    checks: list[Callable[[StoreSettings], object]] = [
        _check_token_key, make_tls_context, _check_nats, _check_engine, _check_archive,
        _check_directories, _check_pages,
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
        from ccagent.stores.metrics.nats_receiver import make_login, make_tls

        make_login(settings.nats)
        make_tls(settings.nats)


def _check_pages(settings: StoreSettings) -> None:
    if settings.web.proxies:
        settings.web.read_secret()


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
