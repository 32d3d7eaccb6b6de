"""A store whose memory is limited, as by MemoryMax= of its unit."""

from __future__ import annotations

import contextlib
import http.client
import os
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.memory_group import memory_group
from tests.support.metric_store import RunningStore

if TYPE_CHECKING:
    from pathlib import Path

MB = 1 << 20


def invented(node: int, when: int) -> str:
    return "".join(
        f"load,hostname=n{node},type=core,type-id={number} value=1 {when}\n"
        for number in range(4000)
    )


def post(store: RunningStore, lines: str, address: str) -> tuple[int, str]:
    """Return status and body of the response to a POST from an address of this machine."""
    sender = http.client.HTTPConnection(
        "127.0.0.1", store.port, timeout=60, source_address=(address, 0)
    )
    with contextlib.closing(sender):
        sender.request("POST", "/api/write/?cluster=fox", lines)
        answer = sender.getresponse()
        return answer.status, answer.read().decode()


def test_a_store_refuses_series_before_it_is_killed(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("making control groups needs root")
    when = int(time.time()) - 60
    known = {"metric": "load", "host": "n0", "type": "core", "type-ids": ["7"]}
    with memory_group(250 * MB) as limited:
        with limited():
            store = RunningStore(tmp_path / "store")
        with store:
            answers = [post(store, invented(n, when), f"127.0.0.{2 + n % 15}") for n in range(90)]
            assert [status for status, _ in answers[:2]] == [200, 200]
            # Fifteen senders fill the store, although each may have half of it only.
            assert {507} <= {status for status, _ in answers} <= {200, 429, 507}
            reason = answers[-1][1]
            assert "partial write: 4000 values refused, 0 stored: " in reason
            # What is known is stored, and what is stored is answered.
            assert store.write(invented(0, when + 60)).status == 200
            assert store.query(when - 60, when + 120, known)[0][0]["data"].count(1) == 2
            assert store.process is not None
            assert store.process.poll() is None
    assert "new series are refused" in store.log.read_text()
