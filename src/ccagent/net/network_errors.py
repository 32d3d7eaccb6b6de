"""Texts for connection errors, the same for all transports.

Each text follows the URL in a line: `nats://127.0.0.1:4222: connection refused`.
"""

from __future__ import annotations

import errno
import os
import re
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

_TLS_ALERTS = {
    "certificate required": (
        "the server requires a client certificate (certificate-file, key-file)"
    ),
    "alert unknown ca": "the server does not trust the client certificate",
    "alert bad certificate": "the server does not trust the client certificate",
}


def explain_network_error(error: BaseException, seconds: float) -> str:
    """Return the reason for a missing connection or answer; empty for other kinds of errors.

    seconds: the time limit.
    """
    import ssl  # its import takes milliseconds

    match error:
        case socket.gaierror():
            return f"the name does not resolve: {error.strerror}"
        case UnicodeError() if not isinstance(error, UnicodeDecodeError):
            return "the name does not resolve: it is not a host name"
        case ssl.SSLCertVerificationError():
            return explain_certificate(error.verify_message)
        case ssl.SSLEOFError():
            return "TLS was broken off: the server may not speak TLS, or require a key-file"
        case ssl.SSLError():
            return _explain_tls_error(error)
        case ConnectionRefusedError():
            return "connection refused"
        case TimeoutError():
            return f"no answer within {seconds:g} s"
        case _:
            return ""


def explain_listening(error: OSError) -> str:
    """Return address and reason of a server that can't listen, or the error's own text."""
    found = re.search(r"\('([^']*)', (\d+)", str(error))
    if error.errno not in {errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES} or not found:
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    return f"{found[1]}:{found[2]}: {os.strerror(error.errno).lower()}"


def explain_certificate(reason: str) -> str:
    """Return the text for a refused certificate of a server, with the reason."""
    return f"its certificate can't be trusted: {reason}"


def explain_tls_alert(text: str) -> str:
    """Return the meaning of an alert about ccagent's certificate; empty for any other text."""
    text = text.lower().replace("_", " ")
    return next((meaning for alert, meaning in _TLS_ALERTS.items() if alert in text), "")


def _explain_tls_error(error: ssl.SSLError) -> str:
    text = str(error.reason or error.strerror or error).lower().replace("_", " ")
    if meaning := explain_tls_alert(text):
        return meaning
    hint = "" if "alert" in text else "; perhaps the server does not speak TLS"
    return f"TLS failed: {text}{hint}"
