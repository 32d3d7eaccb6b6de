"""A fleet in Prometheus: targets from a metric store or Slurm, rules and alerts."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

from tests.integration.prometheus.conftest import Exporter, Start
from tests.support.metric_store import RunningStore
from tests.support.paths import ROOT
from tests.support.running import CCAGENT

RULES = ROOT / "packaging/examples/prometheus-rules.yml"
_SAMPLES = """\
rule_files: [{rules}]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - series: up{{job="ccagent",instance="n1:9500"}}
        values: 1 1 0x10
      - series: up{{job="ccagent",instance="n2:9500"}}
        values: 1x12
      - series: ccagent_sink_backlog{{instance="n1:9500",sink="nats"}}
        values: 0 500x240
      - series: ccagent_sink_backlog{{instance="n2:9500",sink="nats"}}
        values: 0 500x10 0x240
      - series: ccagent_sink_dropped_total{{instance="n1:9500",sink="nats"}}
        values: 0x10 7x240
      - series: ccagent_sink_rejected_total{{instance="n1:9500",sink="nats"}}
        values: 0x250
      - series: ccagent_job_gpus_idle{{cluster="fox",instance="n1:9500",jobid="7"}}
        values: 4x240
      - series: ccagent_job_gpus_idle{{cluster="fox",instance="n2:9500",jobid="8"}}
        values: 1x60 0 1x180
      - series: ccagent_job_power_watts{{cluster="fox",instance="n1:9500",jobid="7"}}
        values: 300x240
      - series: ccagent_job_power_watts{{cluster="fox",instance="n2:9500",jobid="7"}}
        values: 200x240
    alert_rule_test:
      - alertname: CcagentNodeSilent
        eval_time: 10m
        exp_alerts:
          - exp_labels: {{severity: warning, job: ccagent, instance: "n1:9500"}}
            exp_annotations: {{summary: "n1:9500 has not answered for 5 minutes"}}
      - alertname: CcagentBacklog
        eval_time: 45m
        exp_alerts:
          - exp_labels: {{severity: warning, instance: "n1:9500", sink: nats}}
            exp_annotations:
              summary: "n1:9500: sink nats has 500 messages waiting for 30 minutes"
              description: "`ccagent status` on the node names the last error of the sink."
      - alertname: CcagentMessagesLost
        eval_time: 20m
        exp_alerts:
          - exp_labels: {{severity: critical, instance: "n1:9500", sink: nats}}
            exp_annotations:
              summary: "n1:9500: sink nats dropped or refused messages"
              description: "`ccagent outbox` on the node shows refused messages and the reason."
      - alertname: JobLeavesGpusIdle
        eval_time: 2h50m
        exp_alerts:
          - exp_labels: {{severity: info, cluster: fox, jobid: "7"}}
            exp_annotations:
              summary: "Job 7 has left 4 of its GPUs idle for two hours"
    promql_expr_test:
      - expr: job:ccagent_job_power_watts:sum
        eval_time: 30m
        exp_samples:
          - labels: job:ccagent_job_power_watts:sum{{cluster="fox",jobid="7"}}
            value: 500
"""


def run_targets(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    configuration = directory / "site.toml"
    if not configuration.exists():
        configuration.write_text('cluster = "fox"\n')
    command = [*CCAGENT, "export", "targets", "--config", str(configuration), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_prometheus_finds_the_nodes_of_a_store(
    tmp_path: Path, exporter: Exporter, prometheus: Start
) -> None:
    exporter.serve()
    file = tmp_path / "targets.json"
    now = int(time.time())
    with RunningStore(tmp_path / "store") as store:
        url = f"http://127.0.0.1:{store.port}"
        nothing = run_targets(tmp_path, str(file), "--from", url)
        assert (nothing.returncode, file.exists()) == (2, False)
        assert (
            "no node of cluster fox was found; an existing file is left as it is" in nothing.stderr
        )
        store.write(f"cpu_load,hostname=127.0.0.1,type=node value=1 {now}\n")
        store.write(f"cpu_load,hostname=gone,type=node value=1 {now - 7200}\n")
        done = run_targets(tmp_path, str(file), "--from", url, "--port", str(exporter.port))
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert json.loads(file.read_text()) == [
        {"targets": [f"127.0.0.1:{exporter.port}"], "labels": {"cluster": "fox"}}
    ]
    server = prometheus([{"job_name": "ccagent", "file_sd_configs": [{"files": [str(file)]}]}])
    assert server.wait('up{cluster="fox"} == 1') == 1


def test_targets_are_the_nodes_that_slurm_knows(tmp_path: Path) -> None:
    sinfo = tmp_path / "sinfo"
    sinfo.write_text('#!/bin/sh\necho "$@" >"$0.args"\nprintf "n2\\nn1\\nn2\\nfe80::1\\n"\n')
    sinfo.chmod(0o755)
    (tmp_path / "site.toml").write_text(f'cluster = "fox"\n[exporter]\nsinfo = "{sinfo}"\n')
    done = run_targets(tmp_path)
    assert json.loads(done.stdout)[0]["targets"] == ["[fe80::1]:9500", "n1:9500", "n2:9500"]
    assert (tmp_path / "sinfo.args").read_text() == "--all --noheader --Node --format=%n\n"


def test_a_store_that_is_away_leaves_the_file(tmp_path: Path) -> None:
    file = tmp_path / "targets.json"
    file.write_text("[]")
    done = run_targets(tmp_path, str(file), "--from", "http://127.0.0.1:9")
    assert (done.returncode, done.stderr) == (
        1,
        "ccagent: http://127.0.0.1:9: connection refused\n",
    )
    assert file.read_text() == "[]"


def test_rules_and_alerts_say_what_happened(tmp_path: Path) -> None:
    done = subprocess.run(
        ["promtool", "check", "rules", str(RULES)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    samples = tmp_path / "test.yml"
    samples.write_text(_SAMPLES.format(rules=RULES))
    done = subprocess.run(
        ["promtool", "test", "rules", str(samples)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
