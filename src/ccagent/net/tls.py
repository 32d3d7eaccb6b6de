"""Logins and TLS of clients: the check of their keys, and the context of a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ccagent.config.secret import read_secret, secret_path
from ccagent.errors import ConfigurationError
from ccagent.log import logger
from ccagent.net.urls import is_loopback

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable

    from ccagent.config.duration import Duration

_LONGEST = 86400.0


class ClientSettings(Protocol):
    """The keys of a client: of a sink, or of an agent whose source is a server."""

    @property
    def url(self) -> str:
        """URL of the server, or of several."""
        ...

    @property
    def ca_file(self) -> str:
        """File of certificates to trust; empty: those of the system."""
        ...

    @property
    def certificate_file(self) -> str:
        """File of the client certificate."""
        ...

    @property
    def key_file(self) -> str:
        """File of its key."""
        ...

    @property
    def insecure(self) -> bool:
        """The server is not verified."""
        ...

    @property
    def allow_cleartext(self) -> bool:
        """A secret may be sent unencrypted to another machine."""
        ...

    @property
    def time_limit(self) -> Duration:
        """Maximum time for a connection."""
        ...


def check_network(
    settings: ClientSettings, hosts: Iterable[str], *, is_encrypted: bool, secret: str = ""
) -> None:
    """Check logins, certificates and time limit. Log a warning about insecure settings.

    secret: the file of a password or token for `hosts`. Raise ConfigurationError if the secret
    would be sent unencrypted to another machine.
    """
    if not 0 < settings.time_limit.seconds <= _LONGEST:
        raise ConfigurationError("time-limit: from 1ms to 1d")
    if bool(settings.certificate_file) != bool(settings.key_file):
        raise ConfigurationError("certificate-file and key-file need each other")
    if secret:
        read_secret(secret)
    if is_encrypted:
        make_tls_context(settings)
    elif settings.ca_file or settings.certificate_file or settings.insecure:
        raise ConfigurationError("ca-file, certificate-file and insecure are for TLS only")
    elif secret and not settings.allow_cleartext and not all(map(is_loopback, hosts)):
        raise ConfigurationError(
            f"url: {secret} would be sent unencrypted: use TLS or set allow-cleartext = true"
        )
    if settings.insecure:
        place = settings.url.partition("?")[0]
        logger.warning("%s: insecure = true: the server is not verified", place)


def make_tls_context(settings: ClientSettings) -> ssl.SSLContext:
    """Return a context that verifies the server and has the client certificate.

    Raise ConfigurationError for an invalid certificate or key.
    """
    import ssl

    try:
        context = ssl.create_default_context(cafile=settings.ca_file or None)
    except OSError as error:
        raise ConfigurationError(f"ca-file: {settings.ca_file}: {error.strerror}") from error
    if settings.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if settings.certificate_file:
        read_secret(settings.key_file)
        try:
            # OpenSSL would prompt for a missing password on the terminal.
            context.load_cert_chain(
                settings.certificate_file, secret_path(settings.key_file), password=""
            )
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"certificate-file {settings.certificate_file}, key-file {settings.key_file}: "
                f"{getattr(error, 'strerror', None) or error}"
            ) from error
    return context


def make_unverified_context() -> ssl.SSLContext:
    """Return a context for a server of this node, whose certificate may not name its address."""
    import ssl

    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
