"""A metric store with the jobs of a day, one for all tests here."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.metric_store import RunningStore

GPU = "00000000:0E:00.0"


class JobStore:
    """A store, and jobs in it that have just ended after two hours; samples every 60 s."""

    def __init__(self, store: RunningStore) -> None:
        self.store = store
        self.end = int(time.time()) // 60 * 60 - 600
        self.start = self.end - 7200
        self._number = 1000

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.store.port}"

    def add(
        self, values: dict[str, float], *, nodes: tuple[str, ...] = ("n1",), user: str = "alice",
        state: str = "completed", samples: int = 120, seconds: int = 7200,
        gpu: list[float] | None = None, cluster: str = "fox", is_running: bool = False,
        **event: Any,
    ) -> str:  # fmt: skip
        """Add a job with constant values on each node, and return its number."""
        self._number += 1
        job = self._number
        resources = [
            {"hostname": node, "hwthreads": list(range(16)),
             **({"accelerators": [GPU]} if gpu else {})} for node in nodes
        ]  # fmt: skip
        started = {
            "jobId": job, "cluster": cluster, "user": user, "project": "phys",
            "partition": "normal", "startTime": self.start, "walltime": 10_800,
            "numHwthreads": 16 * len(nodes), "numAcc": 1 if gpu else 0, "resources": resources,
            "requestedMemory": 65_536 * len(nodes), "metaData": {"jobName": "relax.sh"}, **event,
        }  # fmt: skip
        stopped = {"jobId": job, "cluster": cluster, "startTime": self.start,
                   "stopTime": self.start + seconds, "jobState": state}  # fmt: skip
        lines = [_event("start_job", started, self.start)]
        for node in nodes:
            for step in range(samples):
                time_ = self.start + 60 * step
                lines += [
                    f"{metric},cluster={cluster},hostname={node},stype=job,stype-id={job},"
                    f"type=node value={value} {time_}"
                    for metric, value in values.items()
                ]
                if gpu:
                    lines.append(
                        f"acc_utilization,cluster={cluster},hostname={node},type=accelerator,"
                        f"type-id={GPU} value={gpu[step % len(gpu)]} {time_}"
                    )
        if not is_running:
            lines.append(_event("stop_job", stopped, self.end))
        answer = self.store.write("\n".join(lines))
        assert answer.status == 200, answer.body
        return str(job)


def _event(function: str, content: dict[str, Any], time_: int) -> str:
    text = json.dumps(content).replace("\\", "\\\\").replace('"', '\\"')
    return f'job,function={function},hostname=m,type=node event="{text}" {time_}'


@pytest.fixture(scope="session")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobStore]:
    with RunningStore(tmp_path_factory.mktemp("store")) as store:
        yield JobStore(store)
