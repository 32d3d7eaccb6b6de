"""Connections within the number of open files, and without work for the garbage collector."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import resource
import weakref

import pytest

from ccagent.stores.metrics.api import StoreApi
from ccagent.stores.metrics.commit import GroupCommit
from ccagent.stores.metrics.listening import StoreConnection
from ccagent.stores.metrics.request_reader import ConnectionLimits
from ccagent.stores.process import ConnectionPlan, handle_accept_errors, plan_connections
from tests.unit.stores.metrics.support import new_ingest, new_store
from tests.unit.stores.metrics.test_hostile import RecordedTransport


@pytest.mark.parametrize(
    ("files", "others", "plan"),
    [
        (65_536, 0, ConnectionPlan(20_000, 4096)),
        (65_536, 2560, ConnectionPlan(20_000, 4096)),
        (1024, 0, ConnectionPlan(744, 124)),
        (1024, 2560, ConnectionPlan(372, 62)),
        (64, 0, ConnectionPlan(24, 4)),
        (8, 0, ConnectionPlan(1, 1)),
        (resource.RLIM_INFINITY, 0, ConnectionPlan(20_000, 4096)),
    ],
)
def test_some_descriptors_stay_free(
    files: int, others: int, plan: ConnectionPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limits(_: int) -> tuple[int, int]:
        return files, files

    monkeypatch.setattr(resource, "getrlimit", limits)
    assert plan_connections(20_000, 4096, others=others) == plan


def test_a_lack_of_descriptors_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        handle_accept_errors(loop)
        for number in (errno.EMFILE, errno.EMFILE, errno.ENFILE):
            error = OSError(number, os.strerror(number))
            loop.call_exception_handler({"message": "accept", "exception": error})
        loop.call_exception_handler({"message": "another error"})

    asyncio.run(main())
    assert caplog.text.count("no connection can be accepted: Too many open files") == 1
    assert "Too many open files in system" not in caplog.text
    assert "another error" in caplog.text


def test_a_closed_connection_is_released_at_once() -> None:
    async def connect() -> weakref.ref[StoreConnection]:
        store = new_store()
        api = StoreApi(store, new_ingest(store), GroupCommit(None, "write"))
        connection = StoreConnection(api, ConnectionLimits())
        connection.connection_made(RecordedTransport())
        connection.data_received(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\nPOST /api/w")
        connection.connection_lost(None)
        return weakref.ref(connection)

    gc.disable()
    try:
        assert asyncio.run(connect())() is None
    finally:
        gc.enable()
