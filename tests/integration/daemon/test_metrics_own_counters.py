"""The daemon's own counters as metrics, next to what `ccagent status` tells."""

from __future__ import annotations

from tests.support.running import Running, until

CONFIGURATION = """
cluster = "x.org"
hostname = "c1-1"
status-socket = ""
[agents.metrics]
every = "1s"
preset = "base"
readers = ["ccagent"]
include = ["ccagent_samples", "ccagent_backlog_bytes", "ccagent_sink_backlog"]
sinks = ["tree", "broken"]
[sinks.tree]
url = "dir:OUT"
format = "line"
[sinks.broken]
url = "http://127.0.0.1:9/in"
format = "line"
"""


def values(daemon: Running, series: str) -> list[float]:
    """Return the values of a series, oldest first."""
    files = sorted(path for path in daemon.out.rglob("*") if path.is_file())
    lines = [line for file in files for line in file.read_text().splitlines()]
    found = sorted(
        (int(line.rpartition(" ")[2]), float(line.partition(" value=")[2].partition(" ")[0]))
        for line in lines
        if line.startswith(f"{series} ")
    )
    return [value for _, value in found]


def test_the_daemon_tells_of_itself(daemon: Running) -> None:
    place = "cluster=x.org,hostname=c1-1"
    node = f"{place},type=node"
    daemon.start(CONFIGURATION)
    until(lambda: len(values(daemon, f"ccagent_backlog,{node}")) >= 4)
    assert values(daemon, f"ccagent_backlog,{node}")[-1] >= 2
    broken = values(daemon, f"ccagent_sink_backlog,{place},stype=sink,stype-id=broken,type=node")
    assert broken[-1] >= 2
    assert values(daemon, f"ccagent_backlog_bytes,{node}")[-1] > 200
    # The first interval is short: one sample within it is many a second.
    assert 0 < values(daemon, f"ccagent_samples,{node}")[-1] < 5
    assert values(daemon, f"ccagent_errors,{node}")[-1] == 0.0
    assert 10e6 < values(daemon, f"ccagent_mem_used,{node}")[-1] < 60e6
    assert all(0 <= share < 400 for share in values(daemon, f"ccagent_cpu,{node}"))
    daemon.stop()
