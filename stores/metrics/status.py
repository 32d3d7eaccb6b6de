"""Status of a running store, from its HTTP interface."""

from __future__ import annotations

import http.client
import ssl
from typing import TYPE_CHECKING

from ccagent.log import printable
from ccagent.stores.metrics.settings import split_address

if TYPE_CHECKING:
    from ccagent.stores.metrics.settings import StoreSettings

_SECONDS = 5.0
_LARGEST = 1 << 20


def read_status(settings: StoreSettings) -> tuple[str, bool]:
    """Return a table of the store's metrics, and whether a store answers."""
    host, port = split_address(settings.listen)
    host = host or "localhost"
    connection = (
        http.client.HTTPSConnection(host, port, timeout=_SECONDS, context=_unchecked())
        if settings.tls.certificate
        else http.client.HTTPConnection(host, port, timeout=_SECONDS)
    )
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        text = printable_lines(answer.read(_LARGEST))
    except (OSError, http.client.HTTPException) as error:
        return f"no store answers at {settings.listen}: {error}\n", False
    finally:
        connection.close()
    if answer.status == 401:
        return f"a store runs at {settings.listen}; its numbers need a token\n", True
    if answer.status != 200:
        return f"{settings.listen}: {answer.status} {printable(answer.reason)}\n", False
    return text, True


def _unchecked() -> ssl.SSLContext:
    """Return a TLS context without checks: the certificate may not name the address of `listen`."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def printable_lines(text: bytes) -> str:
    """Return metrics in text format as a table."""
    lines = [
        line.removeprefix("ccagent_store_").rsplit(" ", 1)
        for line in text.decode("utf-8", "replace").splitlines()
        if line and not line.startswith("#")
    ]
    return "".join(f"{printable(name):26} {printable(''.join(value))}\n" for name, *value in lines)
