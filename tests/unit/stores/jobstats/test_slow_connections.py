"""Connections without a whole request."""

from __future__ import annotations

from typing import Any

from ccagent.stores.jobstats.slow_connections import SlowConnections


class Connection:
    """What is seen of a protocol of uvicorn."""

    def __init__(self, *, complete: bool | None = None, has_timer: bool = False) -> None:
        self.cycle: Any = None if complete is None else self
        self.response_complete = complete
        self.timeout_keep_alive_task = object() if has_timer else None
        self.transport = self
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_only_what_has_no_request_for_long_is_closed() -> None:
    now = 0.0
    slow = SlowConnections(30, lambda: now)
    silent = Connection()
    stalled = Connection(complete=True)
    busy = Connection(complete=False)
    idle = Connection(complete=True, has_timer=True)
    everyone = [silent, stalled, busy, idle]
    slow.close(everyone)
    now = 20.0
    late = Connection()
    slow.close([*everyone, late])
    now = 31.0
    slow.close([*everyone, late])
    assert [one.is_closed for one in (*everyone, late)] == [True, True, False, False, False]
