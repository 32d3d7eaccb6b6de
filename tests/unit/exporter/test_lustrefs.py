"""Parameters of Lustre's servers and clients, with the names of lustrefs-exporter."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccagent.agents.lustre.lnet import KERNEL_STATISTICS, NETWORKS, STATISTICS
from ccagent.agents.lustre.metric import Parameter, parse_parameters
from ccagent.errors import NotHereError
from ccagent.exporter.exposition import SampleEncoder, join_openmetrics, join_text
from ccagent.exporter.lustrefs import LustrefsCollector, collect_parameters
from ccagent.machine.node import Node
from tests.support.exposition import values
from tests.support.paths import DATA
from tests.support.scraped import collected, make

PARAMS = DATA / "lustre" / "params"


def exposed(parameters: list[Parameter]) -> dict[str, float]:
    blocks = SampleEncoder().encode(collect_parameters(parameters))
    found = values(join_text(blocks).decode())
    assert values(join_openmetrics(blocks).decode(), "openmetrics") == found
    return found


def recorded(name: str) -> dict[str, float]:
    return exposed([*parse_parameters((PARAMS / name).read_bytes())])


def test_a_server_of_objects_and_metadata() -> None:
    found = recorded("mds_oss_busy.txt")
    names = {name.partition("{")[0] for name in found}
    assert names >= {
        "lustre_read_bytes_total", "lustre_read_samples_total", "lustre_write_bytes_total",
        "lustre_stats_total", "lustre_capacity_kilobytes", "lustre_inodes_free",
        "lustre_exports_total", "lustre_health_healthy",
    }  # fmt: skip
    (reads,) = [
        line for line in (PARAMS / "mds_oss_busy.txt").read_text().splitlines()
        if line.startswith("read_bytes")
    ][:1]  # fmt: skip
    assert any(
        name.startswith("lustre_read_bytes_total") and value == float(reads.split()[6])
        for name, value in found.items()
    )


def test_kilobytes_are_those_of_the_parameter() -> None:
    found = exposed([Parameter("osd-ldiskfs.fs-OST0001.kbytestotal", b"12345\n")])
    assert found == {'lustre_capacity_kilobytes{component="ost",target="fs-OST0001"}': 12345}


def test_histograms() -> None:
    text = (PARAMS / "brw_stats.txt").read_bytes()
    found = exposed([Parameter("osd-ldiskfs.fs-OST0001.brw_stats", text)])
    assert any(name.startswith("lustre_disk_io_total{") for name in found)
    assert any('size="1048576"' in name for name in found)


def test_recovery() -> None:
    found = exposed(
        [
            Parameter(
                "obdfilter.fs-OST0000.recovery_status",
                b"status: COMPLETE\ncompleted_clients: 3/4\nevicted_clients: 1\n"
                b"recovery_duration: 92\n",
            ),
            Parameter(
                "mdt.fs-MDT0000.recovery_status", b"status: RECOVERING\ntime_remaining: 119\n"
            ),
        ]
    )
    assert found['recovery_status_duration_seconds{kind="OST",target="fs-OST0000"}'] == 92
    assert found['recovery_status_time_remaining_seconds{kind="MDT",target="fs-MDT0000"}'] == 119
    assert found['recovery_status{kind="OST",target="fs-OST0000"}'] == 0
    assert found['recovery_status_completed_clients{kind="OST",target="fs-OST0000"}'] == 3
    assert found['recovery_status{kind="MDT",target="fs-MDT0000"}'] == 4


def test_an_unhealthy_server() -> None:
    assert recorded("mds_oss_unhealthy.txt")["lustre_health_healthy"] == 0


def test_a_client() -> None:
    found = recorded("client.txt")
    assert all(name.startswith("lustre_client_stats{") for name in found if "client" in name)
    assert any('target="ai400x2-ff47bce9ca35d800"' in name for name in found)


def test_networks() -> None:
    networks = (PARAMS / "lnetctl_net_show_v4.txt").read_bytes()
    totals = (PARAMS / "lnetctl_stats_show.txt").read_bytes()
    found = exposed(
        [Parameter(" ".join(NETWORKS), networks), Parameter(" ".join(STATISTICS), totals)]
    )
    assert any(name.startswith('lustre_send_count_total{nid="') for name in found)
    assert found["lustre_send_bytes_total"] > 0
    assert found['lustre_health_value{nid="172.16.0.24@tcp"}'] == 1000


def test_totals_of_networks_without_lnetctl() -> None:
    kernel = Parameter(KERNEL_STATISTICS, b"0 28 0 11 12 0 1 2100 5300 0 7")
    found = exposed([kernel])
    assert found == {
        "lustre_send_bytes_total": 2100, "lustre_receive_bytes_total": 5300,
        "lustre_drop_bytes_total": 7,
    }  # fmt: skip
    totals = (PARAMS / "lnetctl_stats_show.txt").read_bytes()
    both = exposed([Parameter(" ".join(STATISTICS), totals), kernel])
    assert both == exposed([Parameter(" ".join(STATISTICS), totals)])


@settings(max_examples=10)
@given(st.sampled_from(["client.txt", "osd.txt", "recovery.txt", "brw_stats.txt"]), st.randoms())
def test_no_damage_raises(name: str, chance: random.Random) -> None:
    content = bytearray((PARAMS / name).read_bytes())
    for _ in range(20):
        content[chance.randrange(len(content))] = chance.randrange(256)
    with suppress(NotHereError):
        list(collect_parameters(parse_parameters(bytes(content))))


def test_job_stats_of_files(tmp_path: Path) -> None:
    target = tmp_path / "proc/fs/lustre/obdfilter/fs-OST0000"
    target.mkdir(parents=True)
    entry = (
        "- job_id:          {}\n  snapshot_time:   1669010520\n"
        "  read_bytes:      {{ samples: 2, unit: bytes, min: 5, max: 7, sum: 12 }}\n"
        "  punch:           {{ samples: 3, unit: reqs }}\n"
    )
    ids = ["1:2:c1", 'a"b', "sleep.1001"]
    (target / "job_stats").write_text("job_stats:\n" + "".join(map(entry.format, ids)))
    node = Node(root=str(tmp_path), hostname="n", cluster="c")
    found = collected(make(LustrefsCollector, lctl="no-such-lctl", max_lustre_jobs=2), node)
    own = 'component="ost",jobid="1:2:c1",operation="read_bytes",target="fs-OST0000"'
    assert found[f"lustre_job_read_bytes_total{{{own}}}"] == 12
    assert found[f"lustre_job_read_samples_total{{{own}}}"] == 2
    assert found[f"lustre_job_read_minimum_size_bytes{{{own}}}"] == 5
    assert found["ccagent_lustre_jobs_left_out"] == 1
    assert any(name.startswith("lustre_job_stats_total{") for name in found)


def test_bytes_of_jobs_of_lustre_2_5(tmp_path: Path) -> None:
    target = tmp_path / "proc/fs/lustre/obdfilter/fs-OST0000"
    target.mkdir(parents=True)
    (target / "job_stats").write_text(
        "job_stats:\n- job_id:          7\n  snapshot_time:   1400000000\n"
        "  read:            { samples: 2, unit: bytes, min: 5, max: 7, sum: 12 }\n"
    )
    node = Node(root=str(tmp_path), hostname="n", cluster="c")
    found = collected(make(LustrefsCollector, lctl="no-such-lctl"), node)
    own = 'component="ost",jobid="7",operation="read_bytes",target="fs-OST0000"'
    assert found[f"lustre_job_read_bytes_total{{{own}}}"] == 12
    assert found[f"lustre_job_read_samples_total{{{own}}}"] == 2


def test_a_node_without_lustre(tmp_path: Path) -> None:
    node = Node(root=str(tmp_path), hostname="n", cluster="c")
    with pytest.raises(NotHereError):
        collected(make(LustrefsCollector, lctl="no-such-lctl"), node)
