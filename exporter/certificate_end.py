"""The expiry time of a certificate, from a TLS handshake in memory: `ssl` parses no files."""

from __future__ import annotations

import ssl

from ccagent.errors import ConfigurationError

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
