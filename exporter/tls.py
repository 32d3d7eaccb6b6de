"""TLS of the exporter: its certificate, reloaded when the files change; its end; client names."""

from __future__ import annotations

import os
import ssl
from typing import TYPE_CHECKING, Any, cast

from ccagent.config.secret import RenewedFiles, secret_path
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
        self._context = RenewedFiles(
            "exporter: certificate",
            (settings.certificate_file, secret_path(settings.key_file), settings.client_ca_file),
            lambda: _make_context(settings),
            _LOOK_EVERY,
        )

    def wrap(self, connected: socket.socket) -> ssl.SSLSocket:
        """Return the socket with TLS, before the handshake. Raise OSError if that fails."""
        return self._context.get().wrap_socket(
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


def _make_context(settings: ExporterSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A handshake costs the server more than the client: one per connection is enough.
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        key = secret_path(settings.key_file)
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


_EXPIRED = 10
"""X509_V_ERR_CERT_HAS_EXPIRED of OpenSSL."""
_STEPS = 20


def find_certificate_end(certificate_file: str, key_file: str) -> float:
    """Return the expiry time of a certificate in seconds since 1970.

    Raise ConfigurationError if the certificate has expired or can't be used.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        server.load_cert_chain(certificate_file, key_file)
        client.load_verify_locations(certificate_file)
        end = _shake_hands(server, client)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == _EXPIRED:
            raise ConfigurationError(f"certificate-file: {certificate_file}: has expired") from None
        raise ConfigurationError(
            f"certificate-file: {certificate_file}: {error.verify_message}"
        ) from error
    except OSError as error:
        raise ConfigurationError(f"certificate-file: {certificate_file}: {error}") from error
    return float(ssl.cert_time_to_seconds(end))


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> str:
    """Return notAfter of the server's certificate. Raise ssl.SSLError if the handshake fails."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server)
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(_STEPS):
        for side in (asking, answering):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            if side is asking:
                return str((asking.getpeercert() or {}).get("notAfter", ""))
    raise ssl.SSLError("the handshake does not end")
