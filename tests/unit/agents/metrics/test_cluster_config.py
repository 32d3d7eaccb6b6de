"""What `ccagent metrics --cluster-config` prints, against the JSON schema of ClusterCockpit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.metrics.agent import MetricsAgent
from ccagent.agents.metrics.cluster_config import (
    cluster_config,
    merge_clusters,
    schema_unit,
    store_config,
    topology,
)
from ccagent.agents.metrics.presets import FACTORS
from ccagent.agents.metrics.settings import MetricsSettings
from ccagent.config.files import convert
from ccagent.errors import ConfigurationError
from ccagent.machine.node import Node
from tests.support.paths import DATA
from tests.support.tree import TreeNode

SCHEMAS = DATA / "clustercockpit"


def validate(cluster: dict[str, Any]) -> None:
    """Raise for what cc-backend would refuse."""
    unit = (SCHEMAS / "unit.schema.json").read_text("utf-8")
    text = (SCHEMAS / "cluster.schema.json").read_text("utf-8")
    # The reference names a file of cc-lib; the schema stands in its place here.
    schema = json.loads(text.replace('"$ref": "embedfs://unit.schema.json"', f'"allOf": [{unit}]'))
    validator: Any = jsonschema.Draft202012Validator(schema)
    validator.validate(cluster)


def describe(root: Path, name: str = "c1-1", **keys: object) -> dict[str, Any]:
    settings = {key.replace("_", "-"): value for key, value in keys.items()}
    node = TreeNode(root)
    node.hostname = name
    for cpu in range(4):
        topology = f"../sys/devices/system/cpu/cpu{cpu}/topology"
        node.write(f"{topology}/physical_package_id", f"{cpu // 2}\n")
        node.write(f"{topology}/core_id", f"{cpu % 2}\n")
        node.write(f"{topology}/core_cpus_list", f"{cpu}\n")
    node.write("../sys/devices/system/cpu/online", "0-3\n")
    agent = MetricsAgent(
        convert(settings, MetricsSettings, "agents.metrics", place="test"), frozenset({"line"})
    )
    return cluster_config(agent, node)


@pytest.mark.parametrize("preset", ["clustercockpit", "spec", "base"])
def test_it_passes_the_schema(preset: str, tmp_path: Path) -> None:
    cluster = describe(tmp_path, preset=preset)
    validate(cluster)
    (subcluster,) = cluster["subClusters"]
    assert (subcluster["socketsPerNode"], subcluster["coresPerSocket"]) == (2, 2)


def test_cores_are_apart_where_core_ids_repeat_in_a_socket(tmp_path: Path) -> None:
    describe(tmp_path)
    node = TreeNode(tmp_path)
    for cpu in range(8):
        # Two dies of two cores with two threads: the numbers of cores start again in each die.
        place = f"../sys/devices/system/cpu/cpu{cpu}/topology"
        node.write(f"{place}/physical_package_id", "0\n")
        node.write(f"{place}/core_id", f"{cpu // 2 % 2}\n")
        node.write(f"{place}/core_cpus_list", f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}\n")
    node.write("../sys/devices/system/cpu/online", "0-7\n")
    assert topology(node)["core"] == [[0, 1], [4, 5], [2, 3], [6, 7]]


def test_an_offline_hwthread_is_left_out(tmp_path: Path) -> None:
    describe(tmp_path)
    node = TreeNode(tmp_path)
    # Some kernels keep the topology of a hwthread that is offline.
    node.write("../sys/devices/system/cpu/online", "0-2\n")
    found = topology(node)
    assert (found["node"], found["socket"]) == ([0, 1, 2], [[0, 1], [2]])


@given(st.sampled_from([unit for pair in FACTORS for unit in pair]) | st.text(max_size=8))
def test_any_unit_is_one_of_the_schema(unit: str) -> None:
    schema = json.loads((SCHEMAS / "unit.schema.json").read_text("utf-8"))
    validator: Any = jsonschema.Draft202012Validator(schema)
    validator.validate(schema_unit(unit))


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("GB", {"base": "B", "prefix": "G"}),
        ("MByte/s", {"base": "B/s", "prefix": "M"}),
        ("GFlops/s", {"base": "F/s", "prefix": "G"}),
        ("degC", {"base": "°C"}),
        ("percent", {"base": ""}),
        ("GiB", {"base": ""}),
    ],
)
def test_units_have_base_and_prefix(unit: str, expected: dict[str, str]) -> None:
    assert schema_unit(unit) == expected


def test_limits_are_in_the_unit_that_is_sent(tmp_path: Path) -> None:
    metrics = {each["name"]: each for each in describe(tmp_path)["metricConfig"]}
    total = metrics["mem_used"]["peak"]
    assert total == pytest.approx(16000 * 1024 / 1e9, abs=0.001)
    assert metrics["mem_used"]["lowerIsBetter"]
    assert metrics["cpu_load"]["peak"] == 4


def test_shares_of_jobs_are_there_while_no_job_runs(tmp_path: Path) -> None:
    cluster = describe(tmp_path, cgroup_jobs={"scope": "socket"})
    metrics = {each["name"]: each["scope"] for each in cluster["metricConfig"]}
    assert metrics["cgroup_mem_used"] == "socket"
    assert not any(name.startswith("job_") for name in metrics)


def test_what_only_the_daemon_counts_is_there() -> None:
    agent = MetricsAgent(MetricsSettings(readers=("ccagent",)), frozenset({"line"}))
    node = Node(hostname="c1-1", cluster="c1")
    names = {each["name"] for each in cluster_config(agent, node)["metricConfig"]}
    assert names == {name for name in agent.outputs if not name.startswith("ccagent_sink_")}
    assert len(names) > 2


def test_the_store_has_a_form_of_its_own(tmp_path: Path) -> None:
    found = store_config(describe(tmp_path, resolution="30s"))["metrics"]
    assert found["mem_used"] == {"frequency": 30, "aggregation": "sum"}
    assert found["cpu_load"] == {"frequency": 30, "aggregation": "avg"}


class TestMerging:
    def test_equal_nodes_are_one_subcluster(self, tmp_path: Path) -> None:
        merged = merge_clusters([describe(tmp_path, f"c1-{number}") for number in (3, 1, 2)])
        validate(merged)
        assert [each["nodes"] for each in merged["subClusters"]] == ["c1-[1-3]"]

    def test_others_are_others(self, tmp_path: Path) -> None:
        plain = describe(tmp_path, "c1-1")
        other = describe(tmp_path, "g1", exclude=["cpu_load"])
        other["subClusters"][0]["coresPerSocket"] = 64
        next(each for each in other["metricConfig"] if each["name"] == "mem_used")["peak"] = 9
        merged = merge_clusters([plain, other])
        validate(merged)
        assert [each["nodes"] for each in merged["subClusters"]] == ["c1-1", "g1"]
        metrics = {each["name"]: each for each in merged["metricConfig"]}
        assert metrics["cpu_load"]["subClusters"] == [{"name": "part2", "remove": True}]
        assert metrics["mem_used"]["subClusters"][0]["peak"] == 9
        assert "subClusters" not in metrics["mem_free"]

    def test_merging_twice_changes_nothing(self, tmp_path: Path) -> None:
        one = merge_clusters([describe(tmp_path, name) for name in ("c1-1", "c1-3", "g7")])
        assert merge_clusters([one]) == one

    def test_several_subclusters_are_not_merged_again(self, tmp_path: Path) -> None:
        merged = merge_clusters(
            [describe(tmp_path), describe(tmp_path, "g1", exclude=["cpu_load"])]
        )
        with pytest.raises(ConfigurationError, match="merge the outputs of all nodes at once"):
            merge_clusters([merged, merged])

    def test_units_that_contradict_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match="nodes differ in unit"):
            merge_clusters([describe(tmp_path), describe(tmp_path, "c2", preset="base")])
