"""A proxy that asks an exporter for the text format, whatever Prometheus would like.

Prometheus 2.42 always prefers OpenMetrics.
"""

from __future__ import annotations

import http.server
import ssl
import threading
import urllib.request
from types import TracebackType
from typing import Self


class TextRelay:
    """Relays scrapes to a URL in the text format, with the login of the client; a context."""

    def __init__(self, url: str, authority: str) -> None:
        context = ssl.create_default_context(cafile=authority) if authority else None

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                headers = {
                    name: value
                    for name, value in self.headers.items()
                    if name.lower() in {"authorization", "x-prometheus-scrape-timeout-seconds"}
                }
                request = urllib.request.Request(url, headers=headers | {"Accept": "text/plain"})
                with urllib.request.urlopen(request, timeout=20, context=context) as answer:
                    body = answer.read()
                    kind = answer.headers["Content-Type"]
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named so
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
