"""TLS of the exporter: its certificate, reloaded when the files change; client certificates."""

from __future__ import annotations

import contextlib
import os
import ssl
import time
from typing import TYPE_CHECKING, Any, cast

from ccagent.errors import ConfigurationError
from ccagent.log import logger

if TYPE_CHECKING:
    import socket

    from ccagent.exporter.settings import ExporterSettings

_LOOK_EVERY = 5.0
_OPEN_TO_OTHERS = 0o007


class TlsContext:
    """The TLS of client connections. A renewed certificate is used within seconds."""

    def __init__(self, settings: ExporterSettings) -> None:
        """Read the files. Raise ConfigurationError if one is invalid or can't be read."""
        self._settings = settings
        self._context = _make_context(settings)
        self._stamps = self._look()
        self._looked_at = time.monotonic()

    def wrap(self, connected: socket.socket) -> ssl.SSLSocket:
        """Return the socket with TLS, before the handshake. Raise OSError if that fails."""
        self._renew()
        return self._context.wrap_socket(
            connected, server_side=True, do_handshake_on_connect=False, suppress_ragged_eofs=True
        )

    def accepts(self, connected: ssl.SSLSocket) -> bool:
        """Return whether a client's certificate has one of `client-names`, or none are set."""
        allowed = self._settings.client_names
        if not allowed:
            return True
        certificate = cast("dict[str, Any]", connected.getpeercert() or {})
        names = {value for _, value in certificate.get("subjectAltName", ())}
        if names.isdisjoint(allowed):
            logger.warning("exporter: a client's certificate has none of client-names")
            return False
        return True

    def _renew(self) -> None:
        now = time.monotonic()
        if now < self._looked_at + _LOOK_EVERY:
            return
        self._looked_at = now
        stamps = self._look()
        if stamps == self._stamps:
            return
        try:
            self._context = _make_context(self._settings)
            self._stamps = stamps
        except ConfigurationError as error:
            logger.error("exporter: certificate not reloaded, the old one stays in use: %s", error)

    def _look(self) -> list[tuple[int, int]]:
        """Return inode and mtime (ns) of each readable file."""
        settings = self._settings
        found: list[tuple[int, int]] = []
        for path in (settings.certificate_file, _key_path(settings), settings.client_ca_file):
            with contextlib.suppress(OSError):
                status = os.stat(path)
                found.append((status.st_ino, status.st_mtime_ns))
        return found


def _key_path(settings: ExporterSettings) -> str:
    from ccagent.config.secret import secret_path

    return secret_path(settings.key_file)


def _make_context(settings: ExporterSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A handshake costs the server more than the client: one per connection is enough.
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        key = _key_path(settings)
        if os.stat(key).st_mode & _OPEN_TO_OTHERS:
            raise ConfigurationError(f"key-file: {key}: others can read this key: chmod o= it")
        context.load_cert_chain(settings.certificate_file, key, password=_refuse_password)
    except OSError as error:  # includes ssl.SSLError
        reason = explain_certificate(error)
        place = error.filename or f"{settings.certificate_file}, {settings.key_file}"
        raise ConfigurationError(f"certificate-file, key-file: {place}: {reason}") from error
    except ValueError as error:
        raise ConfigurationError(f"key-file: {settings.key_file}: {error}") from error
    if settings.client_ca_file:
        try:
            context.load_verify_locations(settings.client_ca_file)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConfigurationError(
                f"client-ca-file: {settings.client_ca_file}: {reason}"
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def explain_certificate(error: OSError) -> str:
    """Return the reason in words for which a certificate and its key can't be used."""
    if not isinstance(error, ssl.SSLError):
        return error.strerror or str(error)
    reason: str | None = getattr(error, "reason", None)
    if reason == "KEY_VALUES_MISMATCH":
        return "the key does not belong to the certificate"
    if reason in {None, "", "NO_START_LINE"}:  # OpenSSL reports `[SSL] PEM lib`
        return "no certificate, or no key, in PEM"
    return str(error.strerror or error)


def _refuse_password() -> str:
    raise ValueError("the key is encrypted; a daemon can't ask for its password")
