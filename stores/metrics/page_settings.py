"""The keys of `[web]` in the store's configuration, and the thresholds of verdicts on jobs."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from msgspec import Meta, field

from ccagent.config.duration import Duration
from ccagent.config.secret import read_secret
from ccagent.config.settings import Settings
from ccagent.errors import ConfigurationError

_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_SHORTEST_SECRET = 16


def _percent(description: str) -> Meta:
    return Meta(ge=0, le=100, description=description)


def _at_least_0(description: str) -> Meta:
    return Meta(ge=0, description=description)


class JobThresholds(Settings, frozen=True, kw_only=True):
    """The keys of [thresholds]."""

    off: Annotated[list[str], Meta(description="names of rules that are not applied")] = []
    min_runtime: Annotated[
        Duration, Meta(description="minimum run time; shorter jobs are not judged by their use")
    ] = Duration("5m")
    fewest_samples: Annotated[
        int, Meta(ge=1, description="minimum of samples; a job with fewer is too short to measure")
    ] = 2
    coverage: Annotated[float, _percent("% of the expected samples that a BAD needs")] = 90.0
    interactive_names: Annotated[
        list[str], Meta(description="prefixes of the names of interactive jobs")
    ] = field(
        default_factory=lambda: ["interactive", "sys/dashboard", "jupyter", "spawner-jupyterhub"]
    )
    session_idle: Annotated[
        Duration, Meta(description="session: a hint if nothing happened for this long at the end")
    ] = Duration("2h")

    wait_share: Annotated[
        float, _percent("wait-mount: from this % of its tasks' time in reads and writes")
    ] = 30.0
    wait_pressure: Annotated[
        float, _percent("wait-io: from this % of the time in which a task waited for I/O")
    ] = 30.0
    wait_rate: Annotated[float, _at_least_0("wait-io: from this many MB/s per node")] = 200.0
    wait_metadata: Annotated[
        float, _at_least_0("wait-metadata: from this many operations per second and node")
    ] = 1000.0
    wait_network: Annotated[float, _at_least_0("wait-network: from this many MB/s per node")] = (
        100.0
    )
    node_idle: Annotated[
        float, _percent("idle-nodes, gpu-idle: up to this % of the busiest node or GPU of the job")
    ] = 5.0

    gpu_idle: Annotated[float, _percent("gpu-idle: BAD up to this % on average")] = 1.0
    gpu_idle_window: Annotated[
        Duration, Meta(description="gpu-idle: BAD if a GPU was unused for this long at the end")
    ] = Duration("60m")
    gpu_low_bad: Annotated[float, _percent("gpu-low: BAD up to this %")] = 15.0
    gpu_low_hint: Annotated[float, _percent("gpu-low: a hint below this %")] = 25.0
    gpu_low_interactive: Annotated[
        Duration, Meta(description="session: a low use of GPUs is BAD after this time")
    ] = Duration("8h")
    gpu_low_spare_memory: Annotated[
        float, _percent("gpu-low: only up to this % of GPU memory; 100: always")
    ] = 100.0
    gpu_sms_busy: Annotated[float, _percent("gpu-few-sms: only from this % GPU use")] = 80.0
    gpu_sms_active: Annotated[float, _percent("gpu-few-sms: a hint up to this % of SMs")] = 20.0
    gpu_sms_power: Annotated[
        float, _percent("gpu-few-sms: not above this % of the GPU's power limit, if it is known")
    ] = 50.0

    cpu_zero: Annotated[float, _percent("cpu-zero: BAD up to this % of one core")] = 1.0
    cpu_low_bad: Annotated[float, _percent("cpu-low: BAD below this %")] = 65.0
    cpu_low_hint: Annotated[float, _percent("cpu-low: a hint up to this %")] = 80.0
    serial_from: Annotated[float, _at_least_0("serial: more cores' work than this")] = 0.85
    serial_to: Annotated[float, _at_least_0("serial: less cores' work than this")] = 1.01

    mem_limit_hint: Annotated[float, _percent("mem-limit: a hint from this % of the limit")] = 90.0
    mem_limit_pressure: Annotated[
        float, _percent("mem-pressure: a hint from this % of time waiting")
    ] = 10.0
    mem_excess_bad: Annotated[float, _percent("mem-excess: BAD below this %")] = 10.0
    mem_excess_hint: Annotated[float, _percent("mem-excess: a hint below this %")] = 70.0
    mem_excess_node: Annotated[
        float, _percent("mem-excess: only below this % of a node's cores")
    ] = 85.0
    mem_excess_per_gpu: Annotated[
        float, _at_least_0("mem-excess: GPU jobs only above this many GB per GPU")
    ] = 50.0
    mem_margin: Annotated[
        float, Meta(ge=0, le=1000, description="% that suggestions add to the peak")
    ] = 20.0
    default_memory_per_core: Annotated[
        float, _at_least_0("mem-excess: only above this many GB per core")
    ] = 2.0

    time_bad: Annotated[float, _percent("time: BAD below this % of the limit")] = 10.0
    time_hint: Annotated[float, _percent("time: a hint below this % of the limit")] = 60.0
    time_min_runtime: Annotated[
        Duration, Meta(description="time: only jobs that ran longer than this")
    ] = Duration("15m")

    load_per_core: Annotated[
        float, Meta(gt=0, description="oversubscribed: a hint above this load, exclusive jobs")
    ] = 1.2
    fragmented_cores: Annotated[
        float, Meta(ge=0, le=1, description="fragmented: below this share of a node's cores")
    ] = 0.5
    fragmented_memory: Annotated[
        float, Meta(ge=0, le=1, description="fragmented: below this share of a node's memory")
    ] = 0.8
    gpu_share_cores: Annotated[
        float, Meta(gt=0, description="gpu-share: a hint above this many shares of cores")
    ] = 1.5


class WebSettings(Settings, frozen=True, kw_only=True):
    """The keys of `[web]`."""

    listen: Annotated[str, Meta(description="ADDRESS:PORT of the pages; empty: none")] = ""
    staff: Annotated[
        list[str], Meta(description="users who may see all jobs, in addition to roles of tokens")
    ] = []
    proxies: Annotated[
        list[str], Meta(description="addresses of reverse proxies that log users in")
    ] = []
    proxy_header: Annotated[str, Meta(description="header in which a proxy names the user")] = (
        "X-Remote-User"
    )
    proxy_secret_file: Annotated[
        str, Meta(description="file with the secret that a proxy sends as X-Ccagent-Secret")
    ] = ""
    behind_tls: Annotated[
        bool, Meta(description="a proxy ends TLS: browsers send the session's cookie over it alone")
    ] = False
    jobstats: Annotated[
        str, Meta(description="URL of a jobstats store, for the page of Lustre; empty: none")
    ] = ""
    jobstats_token_file: Annotated[
        str, Meta(description="file with the token of a reader of the jobstats store")
    ] = ""
    jobstats_ca_file: Annotated[
        str, Meta(description="file with CA certificates for the jobstats store")
    ] = ""
    preset: Annotated[
        Literal["clustercockpit", "spec", "base"],
        Meta(description="unit preset of the agents that send to the store"),
    ] = "clustercockpit"
    thresholds: JobThresholds = JobThresholds()

    def problems(self) -> list[str]:
        """Return the problems of the settings, each with its key."""
        import ipaddress  # not for `ccagent job`, which reads thresholds

        found: list[str] = []
        for proxy in self.proxies:
            try:
                ipaddress.ip_address(proxy)
            except ValueError:
                found.append(f"web.proxies: {proxy!r} is not an address such as 10.0.0.1")
        if self.proxies and not self.proxy_secret_file:
            found.append("web.proxy-secret-file: required with web.proxies")
        if not _HEADER.fullmatch(self.proxy_header):
            found.append(f"web.proxy-header: {self.proxy_header!r} is not a header name")
        if "" in self.staff:
            found.append("web.staff: has an empty name")
        if self.jobstats:
            found += self._problems_of_jobstats()
        elif self.jobstats_token_file or self.jobstats_ca_file:
            found.append("web.jobstats: required with its other keys")
        return found

    def _problems_of_jobstats(self) -> list[str]:
        from ccagent.net.urls import split_url  # not for `ccagent job`

        try:
            scheme = split_url(self.jobstats).scheme
        except ConfigurationError as error:
            return [f"web.jobstats: {error}"]
        if scheme not in {"http", "https"}:
            return ["web.jobstats: expected http://HOST:PORT or https://HOST:PORT"]
        return []

    def read_secret(self) -> str:
        """Return the secret of the proxies. Raise ConfigurationError if missing or too short."""
        if not self.proxy_secret_file:
            raise ConfigurationError("web.proxies: requires web.proxy-secret-file")
        secret = read_secret(self.proxy_secret_file)
        if len(secret) < _SHORTEST_SECRET:
            raise ConfigurationError(
                f"{self.proxy_secret_file}: expected at least {_SHORTEST_SECRET} characters"
            )
        return secret
