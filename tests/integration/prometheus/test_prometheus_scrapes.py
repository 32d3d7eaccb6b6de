"""A real Prometheus scrapes both formats, with TLS and a password."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from tests.integration.prometheus.conftest import Exporter, Start, get
from tests.integration.prometheus.test_server import tls
from tests.support.certificates import Authority
from tests.support.ports import free_port
from tests.support.running import CCAGENT, until


def _job(exporter: Exporter, authority: Authority, **more: Any) -> dict[str, Any]:
    return {
        "job_name": "node",
        "scheme": "https",
        "basic_auth": {"username": "ada", "password": "right"},
        "tls_config": {"ca_file": authority.certificate},
        "static_configs": [{"targets": [f"127.0.0.1:{exporter.port}"]}],
    } | more


def test_openmetrics_with_tls_and_a_password(
    exporter: Exporter, authority: Authority, users: Path, prometheus: Start
) -> None:
    keys = tls(authority, users).replace('["node_exporter"]', '["ccagent", "node_exporter"]')
    exporter.serve(keys)
    server = prometheus([_job(exporter, authority)])
    # A machine under load may miss a scrape; what counts is that all of a scrape is taken.
    server.wait('sum_over_time(up{job="node"}[1m]) >= 4')
    assert (server.value('max_over_time(scrape_samples_scraped{job="node"}[1m])') or 0) > 300
    lost = 'scrape_samples_scraped{job="node"} - scrape_samples_post_metric_relabeling{job="node"}'
    assert server.value(lost) == 0
    assert server.value("sum(rate(node_cpu_seconds_total[10s]))") is not None
    # What the dashboard finds its nodes by.
    assert server.query("node_uname_info")[0]["metric"]["nodename"]
    text = server.log.read_text()
    assert "append failed" not in text.lower()
    assert "duplicate" not in text.lower()
    assert "out of order" not in text.lower()


def test_counters_go_on_over_a_restart_of_the_agent(exporter: Exporter, prometheus: Start) -> None:
    exporter.serve('names = ["node_exporter"]')
    target = {"static_configs": [{"targets": [f"127.0.0.1:{exporter.port}"]}], "job_name": "node"}
    server = prometheus([target])
    server.wait("count_over_time(node_context_switches_total[1m]) >= 2")
    exporter.stop()
    server.wait('up{job="node"} == 0')
    exporter.serve('names = ["node_exporter"]')
    server.wait('up{job="node"} == 1')
    server.wait("count_over_time(node_context_switches_total[1m]) >= 4")
    for name in ("node_cpu_seconds_total", "node_disk_read_bytes_total", "node_vmstat_pgfault",
                 "node_network_receive_bytes_total", "node_context_switches_total"):  # fmt: skip
        assert server.value(f"sum(resets({name}[1m]))") == 0, name


def test_a_file_for_the_textfile_collector(tmp_path: Path) -> None:
    subprocess.run(
        [*CCAGENT, "export", "textfile", str(tmp_path), "--no-config",
         "--names", "ccagent,node_exporter"], check=True,
    )  # fmt: skip
    port = free_port()
    with subprocess.Popen(
        ["prometheus-node-exporter", f"--web.listen-address=127.0.0.1:{port}",
         "--collector.disable-defaults", "--collector.textfile",
         f"--collector.textfile.directory={tmp_path}"],
        stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        found: list[str] = []

        def is_there() -> bool:
            try:
                found[:] = get(f"http://127.0.0.1:{port}/metrics").splitlines()
            except OSError:
                return False
            return True

        until(is_there)
        process.kill()
    assert "node_textfile_scrape_error 0" in found
    assert any(line.startswith("ccagent_build_info{") for line in found)
    assert (tmp_path / "ccagent.prom").stat().st_mode & 0o777 == 0o644


def test_promtool_finds_nothing_wrong_with_our_own_names() -> None:
    text = subprocess.run(
        [*CCAGENT, "metrics", "--no-config", "--once", "--format", "prometheus",
         "--names", "ccagent"], check=True, capture_output=True,
    ).stdout  # fmt: skip
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
