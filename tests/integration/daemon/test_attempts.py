"""Attempts that fail leave nothing behind, and the first that can succeed does."""

from __future__ import annotations

import builtins
import contextlib
import errno
import gc
import os
import resource
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from ccagent.config.configuration import check_sink
from ccagent.errors import RetryableError
from ccagent.records.message import Message
from ccagent.transports.base import build_transport
from tests.support.mqtt_broker import Broker
from tests.support.nats_server import NatsServer

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from ccagent.transports.base import Transport

_ATTEMPTS = 200
MESSAGE = Message("fox", "c1-1", "sample", "sonar", 1_700_000_000.0, b"{}", "", "id-1")
_HTTP_SERVER = """
import sys
from tests.support.http_server import Server
server = Server()
print(server.place, flush=True)
sys.stdin.read()
server.stop()
"""
SCHEMES = ["http", "nats", "mqtt", "ws"]


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Servers in processes of their own, so that no shortage of ours is theirs."""
    nats = NatsServer(tmp_path_factory.mktemp("nats"))
    broker = Broker(tmp_path_factory.mktemp("mqtt"))
    http = subprocess.Popen(
        [sys.executable, "-c", _HTTP_SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert http.stdout is not None
    yield {
        "http": f"http://{http.stdout.readline().decode().strip()}",
        "nats": nats.url,
        "mqtt": broker.url("mqtt"),
        "ws": broker.url("ws"),
    }
    http.communicate()
    broker.kill()
    nats.kill()


def held() -> tuple[int, int]:
    """Return how many descriptors and threads this process has.

    The kernel still lists a thread for a moment after its end: the least of ten readings counts.
    """
    gc.collect()
    found: list[tuple[int, int]] = []
    for _ in range(10):
        found.append((len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))))
        time.sleep(0.02)
    return min(descriptors for descriptors, _ in found), min(threads for _, threads in found)


def make(url: str) -> Transport:
    return build_transport(check_sink({"url": url, "time-limit": "5s"}, "x", "test"))


@contextlib.contextmanager
def descriptors_left(count: int) -> Generator[None, None, None]:
    """Limit how many files this process may still open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    last = max(map(int, os.listdir("/proc/self/fd")))
    fillers: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (last + 1 + count, before[1]))
        with contextlib.suppress(OSError):
            while True:
                fillers.append(os.dup(0))
        for _ in range(count):
            os.close(fillers.pop())
        yield
    finally:
        for filler in fillers:
            os.close(filler)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextlib.contextmanager
def threads_left(count: int) -> Generator[None, None, None]:
    """Limit how many threads this process may still start."""
    start = threading.Thread.start
    left = [count]

    def start_or_fail(thread: threading.Thread) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("can't start new thread")
        start(thread)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", start_or_fail)
        yield


@contextlib.contextmanager
def no_memory(count: int) -> Generator[None, None, None]:
    """Fail with MemoryError at one of the places where a connection is made."""
    import asyncio
    import select
    import socket

    def fail(*_: Any, **_more: Any) -> Any:
        raise MemoryError

    target = [(socket, "getaddrinfo"), (asyncio, "new_event_loop"), (select, "poll")][count % 3]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*target, fail)
        yield


@pytest.mark.parametrize("shortage", [descriptors_left, threads_left, no_memory])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_shortage_leaves_nothing_behind(
    urls: dict[str, str],
    scheme: str,
    shortage: Callable[[int], contextlib.AbstractContextManager[None]],
) -> None:
    transport = make(urls[scheme])
    transport.send([MESSAGE])
    transport.close()
    before = held()
    failed = 0
    # mosquitto takes 40 ms to 200 ms for a WebSocket.
    for number in range(_ATTEMPTS if scheme != "ws" else _ATTEMPTS // 10):
        with shortage(number % 6):
            try:
                transport.send([MESSAGE])
            except Exception:  # noqa: BLE001 - whatever comes
                failed += 1
                continue
        transport.close()
    assert failed or (scheme, shortage) in {("http", threads_left), ("http", no_memory)}
    transport.send([MESSAGE])
    transport.close()
    assert held() == before


@pytest.mark.parametrize("scheme", SCHEMES)
def test_nobody_listens_leaves_nothing_behind(urls: dict[str, str], scheme: str) -> None:
    with contextlib.closing(make(urls[scheme])) as first:
        first.send([MESSAGE])
    transport = make(f"{scheme}://127.0.0.1:1")
    with pytest.raises(RetryableError):
        transport.send([MESSAGE])
    before = held()
    for _ in range(_ATTEMPTS):
        with pytest.raises(RetryableError):
            transport.send([MESSAGE])
    after = held()
    assert after == before


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_library_that_cant_be_read_can_be_later(urls: dict[str, str], scheme: str) -> None:
    program = f"""
import sys
from tests.integration.daemon.test_attempts import fail_imports, held, make, MESSAGE
transport = make({urls[scheme]!r})
failed = 0
for number in range({_ATTEMPTS}):
    with fail_imports(number % 40):
        try:
            transport.send([MESSAGE])
        except Exception:
            failed += 1
            continue
    transport.close()
    break  # all is imported: no later attempt can fail
assert 0 < failed < {_ATTEMPTS}
transport.send([MESSAGE])
transport.close()
before = held()
transport.send([MESSAGE])
transport.close()
assert held() == before
print("sent")
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (result.stdout, result.stderr, result.returncode) == ("sent\n", "", 0)


@contextlib.contextmanager
def fail_imports(after: int) -> Generator[None, None, None]:
    """Fail as if no file could be opened, at an import after so many others."""
    real = builtins.__import__
    left = [after]

    def import_or_fail(name: str, *arguments: Any, **more: Any) -> Any:
        if name not in sys.modules:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), name)
        return real(name, *arguments, **more)

    builtins.__import__ = import_or_fail
    try:
        yield
    finally:
        builtins.__import__ = real
