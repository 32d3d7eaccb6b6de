"""A server while it listens."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ccagent.stores.metrics import listening
from ccagent.stores.metrics.listening import ListeningServer
from ccagent.stores.metrics.settings import StoreSettings
from tests.unit.stores.metrics.test_hostile import new_api

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    import pytest


class BusyServer(ListeningServer):
    """Has work to do every few seconds that does not end."""

    async def tick(self) -> None:
        await asyncio.Event().wait()


class EndingServer(ListeningServer):
    """Has work that takes a moment to end."""

    def __init__(self, settings: StoreSettings) -> None:
        super().__init__(settings)
        self.api = new_api()
        self.ended: list[str] = []

    def work(self) -> list[Coroutine[Any, Any, None]]:
        return [self._work()]

    async def _work(self) -> None:
        try:
            self.stop()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            self.ended.append("work")

    async def end(self) -> None:
        self.ended.append("store")


class CheckedConnection:
    def __init__(self, server: ListeningServer) -> None:
        self.checks = 0
        self._server = server

    def check_time(self, now: float) -> None:
        del now
        self.checks += 1
        if self.checks == 3:
            self._server.stop()

    def is_busy(self) -> bool:
        return False

    def close(self) -> None:
        return


def test_work_that_takes_long_keeps_no_slow_client_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "_SWEEP_EVERY", 0.01)

    async def serve() -> int:
        server = BusyServer(StoreSettings(listen="127.0.0.1:0"))
        server.api = new_api()
        connection = CheckedConnection(server)
        server.connections.open.add(connection)
        await asyncio.wait_for(server.run(), 30)
        return connection.checks

    assert asyncio.run(serve()) == 3


def test_work_has_ended_before_the_store_writes_the_rest() -> None:
    async def serve() -> list[str]:
        server = EndingServer(StoreSettings(listen="127.0.0.1:0"))
        await asyncio.wait_for(server.run(), 30)
        return server.ended

    assert asyncio.run(serve()) == ["work", "store"]
