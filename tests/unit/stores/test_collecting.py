"""Connections of the metric store need no garbage collection."""

from __future__ import annotations

import asyncio
import gc
import weakref

from ccagent.stores.metrics.api import StoreApi
from ccagent.stores.metrics.commit import GroupCommit
from ccagent.stores.metrics.connection import StoreConnection
from ccagent.stores.metrics.request_reader import ConnectionLimits
from tests.unit.stores.metrics.support import new_ingest, new_store
from tests.unit.stores.metrics.test_hostile import RecordedTransport


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
