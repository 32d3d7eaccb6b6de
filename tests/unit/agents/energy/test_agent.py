"""energy: points, records of ended jobs, and what they say of their certainty."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ccagent.agents.energy.agent import EnergyAgent
from ccagent.errors import ConfigurationError
from ccagent.machine.job_energy import latest_energy
from ccagent.records.encoding import encode
from ccagent.records.line_protocol import decode
from ccagent.records.message import FORMATS
from tests.support.energy_tree import EnergyNode, make_settings

IDLE = {"idle-package": 40.0, "idle-dram": 5.0}


class Scene:
    """An agent on a node with a job, in ticks of ten seconds."""

    def __init__(self, root: Path, **values: object) -> None:
        self.node = EnergyNode(root)
        self.node.zones()
        self.node.job(12, "0-3")
        self.agent = EnergyAgent(make_settings(**{**IDLE, **values}), frozenset(FORMATS))
        self.agent.prepare(self.node)

    def sample(self, ticks: int = 500) -> tuple[dict[str, float], list[dict[str, Any]]]:
        """Return the values by name and tags, and records."""
        if 12 in self.agent.meter.ledger.jobs and ticks:
            self.node.work(12, {0: ticks})
        for zone, joules in (("0", 1000), ("1", 500), ("0:0", 100), ("1:0", 50)):
            self.node.spend(zone, joules)
        self.node.still.sleep(10)
        values: dict[str, float] = {}
        records: list[dict[str, Any]] = []
        for message in encode(self.agent.sample(self.node), FORMATS, self.node):
            if message.format == "sonar":
                assert message.kind == "energy"
                records += json.loads(message.body)
                continue
            for text in message.body.decode().splitlines():
                line = decode(text)
                assert line.tags["hostname"] == "n1"
                assert line.tags["type"] == "node"
                tags = [line.tags[key] for key in ("stype-id", "part", "share") if key in line.tags]
                name = " ".join([line.measurement, *tags])
                assert name not in values
                assert isinstance(line.value, int | float)
                values[name] = line.value
        return values, records


def test_counters_of_jobs_and_the_node(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    first, records = scene.sample()
    assert records == []
    assert first == {
        "job_energy 12 cpu active": 600.0, "job_energy 12 cpu idle": 400.0,
        "job_energy 12 memory active": 50.0, "job_energy 12 memory idle": 12.5,
        "job_energy_least 12": 1009.375, "job_energy_most 12": 1115.625,
        "job_memory_energy_least 12": 59.375, "job_memory_energy_most 12": 65.625,
        "job_energy_idle_known 12": 1,
        "job_power 12": 106.25,
        "node_energy cpu": 1500.0, "node_energy memory": 150.0,
        "node_energy_system cpu": 0.0, "node_energy_system memory": 0.0,
        "node_energy_unallocated cpu": 500.0, "node_energy_unallocated memory": 87.5,
        "node_power": 165.0,
    }  # fmt: skip
    second, _ = scene.sample()
    assert second["job_energy 12 cpu active"] == 1200.0
    assert second["job_power 12"] == 106.25


def test_flat_names_for_stores_that_ignore_tags(tmp_path: Path) -> None:
    values, _ = Scene(tmp_path, names="flat").sample()
    assert values["job_energy_cpu_active 12"] == 600.0
    assert values["node_energy_unallocated_memory"] == 87.5
    assert not any(" cpu" in name for name in values)


def test_other_parts_of_the_process_see_the_last_split(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.sample()
    energy = latest_energy()
    assert energy is not None
    assert energy.power == 165_000_000
    assert energy.jobs[12].parts["cpu", "active"] == 600_000_000
    assert energy.whole == {"cpu": 1_500_000_000, "memory": 150_000_000}
    assert energy.unallocated["memory"] == 87_500_000
    scene.agent.close()
    assert latest_energy() is None


def test_a_record_at_the_end_of_a_job(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.sample()
    scene.sample()
    scene.node.end(12)
    values, (record,) = scene.sample(ticks=0)
    assert record["job"] == 12
    assert record["seconds"] == 25.0
    assert record["energy"] == record["energy_active"] + record["energy_idle"]
    assert record["cpu_active"] == 1200.0
    assert record["cpu_idle"] == 1300.0  # nobody worked in the last tick: all was idle
    assert record["gpu_active"] == 0
    assert record["method"] == "rapl/cpu-time"
    assert record["coverage"] == 0.8
    assert record["idle_known"] is True
    assert record["memory_least"] < record["memory_most"]
    assert record["measured"] is None
    assert record["exclusive"] == 1.0
    assert record["is_from_start"] is False
    assert record["energy_least"] <= record["energy"] <= record["energy_most"]
    assert record["energy_least"] == pytest.approx(record["energy"] * 0.95)
    assert "slurm_energy" not in record
    assert values["job_energy 12 cpu active"] == 1200.0
    assert values["job_energy_least 12"] == record["energy_least"]
    assert values["job_energy_coverage 12"] == 0.8
    assert scene.sample(ticks=0)[1] == []


def test_nothing_is_sent_while_the_clock_is_wrong(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.sample()
    scene.node.end(12)
    scene.node.still.wall += 86_400
    assert scene.sample(ticks=0) == ({}, [])
    scene.sample(ticks=0)
    values, records = scene.sample(ticks=0)
    assert values["node_energy cpu"] == 6000.0
    assert [record["job"] for record in records] == [12]  # it waited


def test_what_it_needs_is_checked(tmp_path: Path) -> None:
    node = EnergyNode(tmp_path)
    node.write("proc/self/mountinfo", "")
    agent = EnergyAgent(make_settings(rapl="auto", meters=["hwmon", "dcmi"]), frozenset(FORMATS))
    found = {check.subject: check.find() for check in agent.checks(node)}
    assert {*found} >= {"RAPL", "RAPL by perf", "meter of the node", "DCMI"}
    for result in found.values():
        assert result is not None
        assert result.state == "missing"
    agent.close()


def test_status_shows_what_is_known(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    assert scene.agent.describe()["microjoules"] == {}
    scene.sample()
    assert scene.agent.describe() == {
        "jobs": 1,
        "microjoules": {"package 0": 10**9, "dram 0": 10**8, "package 1": 5 * 10**8,
                        "dram 1": 5 * 10**7},
        "unknown": {},
        "accounts": {
            "12": {"joules": 1062.5, "least": 1009.375, "most": 1115.625, "coverage": 1.0}
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value"),
    [("dcmi-every", "1s"), ("dcmi-command", [""]), ("state-file", "x"), ("ratio", 0.5),
     ("counter-error", 2.0), ("meters", ["psys"]), ("rapl", "yes"), ("idle-package", math.inf)],
)  # fmt: skip
def test_settings_that_cannot_work(key: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=key):
        make_settings(**{key: value})
