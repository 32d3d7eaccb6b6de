"""A store whose memory is limited, as by MemoryMax= of its unit."""

from __future__ import annotations

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


def test_a_store_refuses_series_before_it_is_killed(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("making control groups needs root")
    when = int(time.time()) - 60
    known = {"metric": "load", "host": "n0", "type": "core", "type-ids": ["7"]}
    with memory_group(250 * MB) as limited:
        with limited():
            store = RunningStore(tmp_path / "store")
        with store:
            answers = [store.write(invented(node, when)) for node in range(90)]
            assert [one.status for one in answers[:2]] == [200, 200]
            assert {one.status for one in answers} == {200, 507}
            reason = answers[-1].json()["error"]
            assert reason.startswith("partial write: 4000 values refused, 0 stored: ")
            # What is known is stored, and what is stored is answered.
            assert store.write(invented(0, when + 60)).status == 200
            assert store.query(when - 60, when + 120, known)[0][0]["data"].count(1) == 2
            assert store.process is not None
            assert store.process.poll() is None
    assert "new series are refused" in store.log.read_text()
