"""VictoriaMetrics as the engine: its URL, and the threads that speak with it."""

from __future__ import annotations

import asyncio
import base64
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from ccagent.errors import ConfigurationError
from ccagent.stores.metrics.commit import EngineCommit
from ccagent.stores.metrics.log_writer import StoreLogError
from ccagent.stores.metrics.victoria import EngineError, VictoriaEngine, _selector


@pytest.mark.parametrize(
    "url",
    ["", "x", "https://", "http://[::1", "http://h:x", "http://h:99999", "http://h/a b",
     "ftp://u:secret@h", "http://u:secret@h:x"],
)  # fmt: skip
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ConfigurationError) as found:
        VictoriaEngine(url)
    assert "secret" not in str(found.value)


def test_any_character_of_a_name_can_be_selected() -> None:
    # JSON's escapes of characters beyond the first plane are no strings of MetricsQL.
    assert _selector("f\U0001f600", (["n"], None)) == '{cluster="f\U0001f600",hostname=~"n"}'


def test_a_password_is_sent_and_not_told() -> None:
    seen: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(self.headers["Authorization"])
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(403)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request).start()
        engine = VictoriaEngine(f"http://eve:a%40b@127.0.0.1:{server.server_port}")
        with pytest.raises(EngineError) as found:
            engine.import_text(b"x 1\n")
    assert seen == ["Basic " + base64.b64encode(b"eve:a@b").decode()]
    assert str(found.value) == f"127.0.0.1:{server.server_port}: 403 Forbidden"


def test_slow_queries_keep_no_values_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = VictoriaEngine("http://127.0.0.1:1")
    taken: list[bytes] = []
    monkeypatch.setattr(engine, "import_text", taken.append)

    async def write() -> None:
        loop, slow = asyncio.get_running_loop(), threading.Event()
        loop.set_default_executor(ThreadPoolExecutor(1))
        query = loop.run_in_executor(None, slow.wait, 60)
        commit = EngineCommit(engine)
        answer: asyncio.Future[StoreLogError | None] = loop.create_future()
        commit.add(b"x 1\n")
        commit.wait(answer.set_result)
        assert await asyncio.wait_for(answer, 30) is None
        slow.set()
        await query
        await commit.close()

    asyncio.run(write())
    assert taken == [b"x 1\n"]
