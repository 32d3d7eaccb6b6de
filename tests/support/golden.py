"""The envelopes that the recorded machines give, kept beside them.

`python -m tests.support.golden` writes them anew, after a change that is meant to change them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ccagent.agents.base import Agent
from ccagent.agents.sonar.agent import SampleAgent, SampleSettings
from ccagent.agents.sysinfo.agent import SysinfoAgent, SysinfoSettings
from ccagent.records.encoding import encode
from tests.support.paths import MACHINES
from tests.support.recorded import RecordedNode, machine_names
from tests.support.schema import validate

CASES: dict[str, tuple[str, Callable[[], Agent[Any]]]] = {
    "sample": ("SampleEnvelope", lambda: SampleAgent(SampleSettings(), frozenset({"sonar"}))),
    "rollup": (
        "SampleEnvelope",
        lambda: SampleAgent(
            SampleSettings(rollup=True, exclude_system_jobs=True), frozenset({"sonar"})
        ),
    ),
    "sysinfo": ("SysinfoEnvelope", lambda: SysinfoAgent(SysinfoSettings(), frozenset({"sonar"}))),
}


def produce(machine: str, case: str) -> dict[str, Any]:
    """Return the envelope of a machine, validated, with the version left out."""
    kind, make = CASES[case]
    agent = make()
    node = RecordedNode(machine)
    (message,) = encode(agent.sample(node), "sonar", node)
    agent.close()
    envelope = validate(kind, message.body)
    envelope["meta"]["version"] = "*"
    jobs: list[dict[str, Any]] = envelope["data"]["attributes"].get("jobs", [])
    for job in jobs:
        job["processes"].sort(key=_pid)
    jobs.sort(key=_job)
    return envelope


def _pid(process: dict[str, Any]) -> int:
    return int(process["pid"])


def _job(job: dict[str, Any]) -> tuple[int, int, str]:
    return job["epoch"], job["job"], job["user"]


def path(machine: str, case: str) -> Path:
    """Where the expected envelope is kept."""
    return MACHINES / machine / "expected" / f"{case}.json"


def main() -> None:
    """Write all of them, with times in UTC."""
    os.environ["TZ"] = "UTC"
    time.tzset()
    for machine in machine_names():
        for case in CASES:
            path(machine, case).parent.mkdir(exist_ok=True)
            text = json.dumps(produce(machine, case), indent=1, ensure_ascii=False)
            path(machine, case).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
