"""One sentence for each error of a connection, whichever transport meets it."""

from __future__ import annotations

import socket
import ssl

import pytest

from ccagent.net.network_errors import explain_network_error


def certificate_error() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError()
    error.verify_message = "certificate has expired"
    return error


def tls_error(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, reason)
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            socket.gaierror(-2, "Name or service not known"),
            "the name does not resolve: Name or service not known",
        ),
        (UnicodeError("label too long"), "the name does not resolve: it is not a host name"),
        (ConnectionRefusedError(111, "Connection refused"), "connection refused"),
        (TimeoutError(), "no answer within 0.5 s"),
        (certificate_error(), "its certificate can't be trusted: certificate has expired"),
        (
            tls_error("TLSV13_ALERT_CERTIFICATE_REQUIRED"),
            "the server requires a client certificate (certificate-file, key-file)",
        ),
        (tls_error("TLSV1_ALERT_UNKNOWN_CA"), "the server does not trust the client certificate"),
        (
            tls_error("WRONG_VERSION_NUMBER"),
            "TLS failed: wrong version number; perhaps the server does not speak TLS",
        ),
        (
            ssl.SSLEOFError(8, "EOF occurred"),
            "TLS was broken off: the server may not speak TLS, or require a key-file",
        ),
        (OSError(28, "No space left on device"), ""),
        (ValueError("other"), ""),
    ],
)
def test_each_error_has_a_sentence(error: Exception, sentence: str) -> None:
    assert explain_network_error(error, 0.5) == sentence
