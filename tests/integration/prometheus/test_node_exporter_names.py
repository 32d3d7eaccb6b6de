"""Beside a real node_exporter: the same names, labels and values."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from ccagent.exporter.settings import list_collectors
from tests.integration.prometheus.conftest import NODE_EXPORTER, ON_DEMAND, Exporter, get, is_open
from tests.support.exposition import Known, Series, parse
from tests.support.paths import DATA
from tests.support.ports import free_port
from tests.support.running import until

OURS_ALONE = {
    "node_netstat_TcpExt_TCPOFOQueue": "node_exporter has it since 1.7",
    "node_netstat_TcpExt_TCPRcvQDrop": "node_exporter has it since 1.7",
    "node_netstat_Tcp_MaxConn": "the dashboard asks for it",
    "node_softnet_backlog_len": "node_exporter has it since 1.6",
    "node_softnet_flow_limit_count_total": "node_exporter has it since 1.6",
    "node_softnet_received_rps_total": "node_exporter has it since 1.6",
    "node_cpu_isolated": "node_exporter has it since 1.6",
    "node_cpu_scaling_governor": "node_exporter has it since 1.7",
    "node_cpu_online": "node_exporter has it since 1.9",
    "node_filesystem_mount_info": "node_exporter has it since 1.9",
    "node_kernel_hung_tasks_total": "node_exporter has it since 1.11",
    "node_cpu_frequency_avg_hertz": "node_exporter has it since 1.12",
    "node_edac_channel_correctable_errors_total": "node_exporter has it since 1.12",
    "node_edac_channel_uncorrectable_errors_total": "node_exporter has it since 1.12",
}
ADDED_LABELS = {"node_disk_info": "rotational", "node_network_info": "adminstate"}
"""Labels that node_exporter 1.5 lacks."""
NOT_OURS = {
    "node_filesystem_purgeable_bytes": "of macOS; 0 elsewhere",
    "node_softnet_cpu_collision_total": "Linux counts none since 4.7",
    "node_exporter_build_info": "what is running is ccagent: ccagent_build_info",
    "node_processes_threads_state": "it costs reading a file of every thread",
}
OTHER_COLLECTORS = {
    "bcache", "bcachefs", "btrfs", "dmmultipath", "fibrechannel", "ipvs", "nvme", "systemd",
    "tapestats", "watchdog", "xfs", "zfs",
}  # fmt: skip
"""Default collectors of node_exporter that ccagent lacks: of file servers, mostly."""
_FOREIGN = ("go_", "process_", "promhttp_", "node_scrape_collector_")
_MOVING = {
    "node_load1", "node_load5", "node_load15", "node_procs_running", "node_procs_blocked",
    "node_disk_io_now", "node_filefd_allocated", "node_udp_queues", "node_arp_entries",
    "node_softnet_backlog_len", "node_time_seconds", "node_netstat_Tcp_CurrEstab",
    "node_timex_offset_seconds", "node_timex_maxerror_seconds",
    "node_timex_estimated_error_seconds",
    "node_timex_frequency_adjustment_ratio", "node_timex_tick_seconds", "node_timex_status",
    "node_entropy_available_bits", "node_nf_conntrack_entries", "node_network_info",
    "node_cpu_scaling_frequency_hertz", "node_thermal_zone_temp", "node_hwmon_temp_celsius",
}  # fmt: skip
"""Gauges that change from one moment to the next."""
_MOVING_PARTS = (
    "node_memory_", "node_sockstat_", "node_filesystem_", "node_processes_", "node_tcp_",
)  # fmt: skip
_STATES = {"node_tcp_connection_states", "node_processes_state"}
"""A state without a connection or a process has no series."""


@pytest.fixture
def both(
    exporter: Exporter, node_exporter: str
) -> tuple[dict[Series, Known], dict[Series, Known], dict[Series, Known]]:
    """Return what node_exporter has before and after, and what ccagent has in between."""
    collectors = [name for name, is_used in list_collectors("node_exporter").items() if is_used] + [
        *ON_DEMAND
    ]
    exporter.serve(f'names = ["node_exporter"]\ncollectors = {collectors}\nmin-interval = "0s"')
    get(exporter.url)
    before = parse(get(node_exporter))
    between = parse(get(exporter.url))
    return before, between, parse(get(node_exporter))


def _own(series: dict[Series, Known]) -> dict[Series, Known]:
    """Return the series of the node without empty labels: Prometheus stores none."""
    return {
        (name, frozenset((k, v) for k, v in labels if v and ADDED_LABELS.get(name) != k)): known
        for (name, labels), known in series.items()
        if not name.startswith(_FOREIGN)
    }


def test_every_family_has_the_same_labels_types_and_values(
    both: tuple[dict[Series, Known], dict[Series, Known], dict[Series, Known]],
) -> None:
    before, ours, after = map(_own, both)
    theirs = {name for name, _ in before}
    # Since 1.9 node_exporter lacks some fields of /proc/meminfo.
    alone = {name for name, _ in ours} - theirs - OURS_ALONE.keys()
    assert [name for name in alone if not name.startswith("node_memory_")] == []
    assert theirs - {name for name, _ in ours} <= NOT_OURS.keys()
    shared = theirs & {name for name, _ in ours}
    assert len(shared) > 200
    differences: list[str] = []
    for key in sorted(
        {*before, *ours} - ({*before} ^ {*after}), key=lambda each: (each[0], sorted(each[1]))
    ):
        if key[0] not in shared:
            continue
        if key not in before or key not in ours:
            if key[0] in _STATES:
                continue
            differences.append(f"{key} only in {'ours' if key in ours else 'node_exporter'}")
            continue
        low, own, high = before[key], ours[key], after[key]
        if (low.kind, low.help) != (own.kind, own.help):
            differences.append(f"{key}: {low.kind} {low.help!r}, not {own.kind} {own.help!r}")
        if key[0] in _MOVING or key[0].startswith(_MOVING_PARTS):
            continue
        slack = 1e-6 * max(1.0, abs(own.value))
        if not low.value - slack <= own.value <= high.value + slack:
            differences.append(f"{key}: {own.value} is not in {low.value}..{high.value}")
    assert differences == []


def test_success_is_the_same_for_every_collector_of_both(
    both: tuple[dict[Series, Known], dict[Series, Known], dict[Series, Known]],
) -> None:
    before, ours, _ = both
    name = "node_scrape_collector_success"
    theirs = {dict(labels)["collector"]: v.value for (n, labels), v in before.items() if n == name}
    own = {dict(labels)["collector"]: v.value for (n, labels), v in ours.items() if n == name}
    assert theirs.keys() - own.keys() <= OTHER_COLLECTORS
    assert {each: theirs[each] for each in own.keys() & theirs.keys()} == {
        each: own[each] for each in own.keys() & theirs.keys()
    }


def test_the_own_process_has_the_names_of_the_client_libraries(
    both: tuple[dict[Series, Known], dict[Series, Known], dict[Series, Known]],
) -> None:
    theirs, ours = (
        {name: (known.kind, known.help) for (name, _), known in series.items()}
        for series in both[:2]
    )
    own = {name: known for name, known in ours.items() if name.startswith("process_")}
    assert len(own) == 7
    assert own == {name: theirs.get(name) for name in own}


def test_what_the_dashboard_asks_is_answered_where_node_exporter_answers(
    both: tuple[dict[Series, Known], dict[Series, Known], dict[Series, Known]],
) -> None:
    asked = set(Path(DATA / "prometheus/node-exporter-full-names.txt").read_text().split())
    theirs = {name for name, _ in both[0]} & asked
    ours = {name for name, _ in both[1]} & asked
    assert len(theirs) > 130
    assert theirs <= ours


def test_the_clock_is_read_at_the_time_of_the_scrape(exporter: Exporter) -> None:
    exporter.serve('names = ["node_exporter"]\nmin-interval = "0s"')
    before = time.time()
    found = parse(get(f"{exporter.url}?collect[]=time"))
    moment = found["node_time_seconds", frozenset()].value
    assert before <= moment <= time.time()


WRITTEN = r"""# HELP jobs_total Help with \\ and "q" \n x
# TYPE jobs_total counter
jobs_total{a="b",c="\"\\\n}"} 2e3
other NaN
# TYPE h_seconds histogram
h_seconds_bucket{le="1"} 1
h_seconds_bucket{le="+Inf"} 2
h_seconds_sum .5
h_seconds_count 2
# TYPE s summary
s{quantile="0.5"} 1
s_sum 3
s_count 4
"""


def test_files_of_scripts_as_node_exporter_has_them(exporter: Exporter, tmp_path: Path) -> None:
    directory = tmp_path / "textfiles"
    directory.mkdir()
    (directory / "a.prom").write_text(WRITTEN)
    exporter.serve(f'names = ["node_exporter"]\ntextfile-directory = "{directory}"')
    port = free_port()
    with subprocess.Popen(
        [NODE_EXPORTER, f"--web.listen-address=127.0.0.1:{port}",
         f"--collector.textfile.directory={directory}"],
        stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        until(lambda: is_open(port))
        theirs = get(f"http://127.0.0.1:{port}/metrics?collect[]=textfile").splitlines()
        process.kill()
    ours = get(f"{exporter.url}?collect[]=textfile").splitlines()
    mine = ("jobs_total", "other", "h_seconds", "s", "node_textfile_scrape_error")
    beginnings = tuple(f"{head}{name}" for head in ("", "# HELP ", "# TYPE ") for name in mine)
    expected = sorted(line for line in theirs if line.startswith(beginnings))
    assert len(expected) > 15
    assert sorted(line for line in ours if line.startswith(beginnings)) == expected
