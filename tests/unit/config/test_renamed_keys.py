"""Keys of earlier releases: they work, and the log says what they are called now."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccagent.agents.metrics.settings import MetricsSettings
from ccagent.agents.sonar.agent import SampleSettings
from ccagent.config.configuration import load
from ccagent.errors import ConfigurationError
from ccagent.transports.http import HttpSettings

EARLIER = """
[agents.sample]
every = "30s"
sinks = ["out"]
batchless = true
gpu-makers = ["amd"]
[agents.sysinfo]
every = "1h"
sinks = ["out"]
gpu-makers = []
[agents.metrics]
every = "10s"
sinks = ["store"]
time-step = "60s"
include = ["ccagent_left_out"]
[agents.metrics.accelerators]
makers = ["amd"]
[agents.metrics.metrics.ccagent_agent_left_out]
drop = true
[sinks.out]
url = "stdout:"
[sinks.store]
url = "http://192.0.2.1/"
format = "line"
allow-clear = true
"""


def test_an_earlier_configuration_works_and_warns_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "ccagent.toml"
    file.write_text(EARLIER)
    configuration = load(str(file))

    sample = configuration.agents["sample"]
    assert isinstance(sample, SampleSettings)
    assert sample.jobs_by_process_group
    assert sample.gpu_vendors == ("amd",)
    metrics = configuration.agents["metrics"]
    assert isinstance(metrics, MetricsSettings)
    assert metrics.resolution.seconds == 60
    assert metrics.accelerators.vendors == ("amd",)
    assert metrics.include == ("ccagent_skipped",)
    assert [*metrics.metrics] == ["ccagent_agent_skipped"]
    sink = configuration.sinks["store"]
    assert isinstance(sink, HttpSettings)
    assert sink.allow_cleartext

    place = f"{file}: "
    assert sorted(caplog.messages) == sorted([
        f"{place}agents.sample.batchless: this key is now called jobs-by-process-group",
        f"{place}agents.sample.gpu-makers: this key is now called gpu-vendors",
        f"{place}agents.sysinfo.gpu-makers: this key is now called gpu-vendors",
        f"{place}agents.metrics.time-step: this key is now called resolution",
        f"{place}agents.metrics.accelerators.makers: this key is now called vendors",
        "agents.metrics: the metric ccagent_agent_left_out is now called ccagent_agent_skipped",
        "agents.metrics: the metric ccagent_left_out is now called ccagent_skipped",
        f"{place}sinks.store.allow-clear: this key is now called allow-cleartext",
    ])  # fmt: skip


def test_a_key_under_both_names_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "ccagent.toml"
    file.write_text(
        '[agents.metrics]\nevery = "10s"\ntime-step = "60s"\nresolution = "30s"\n'
        '[sinks.out]\nurl = "stdout:"\n'
    )
    with pytest.raises(ConfigurationError, match=r"agents\.metrics\.time-step: unknown key"):
        load(str(file))
