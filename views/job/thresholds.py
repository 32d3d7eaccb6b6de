"""The thresholds of verdicts, as keys of the configuration."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from ccagent.config.duration import Duration
from ccagent.config.settings import Settings


class JobThresholds(Settings, frozen=True, kw_only=True):
    """The keys of [thresholds]."""

    off: Annotated[list[str], Meta(description="names of rules that are not applied")] = []
    min_runtime: Annotated[
        Duration, Meta(description="minimum run time; shorter jobs are not judged by their use")
    ] = Duration("5m")
    fewest_samples: Annotated[
        int, Meta(ge=1, description="minimum of samples; a job with fewer is too short to measure")
    ] = 2
    coverage: Annotated[
        float, Meta(ge=0, le=100, description="% of the expected samples that a BAD needs")
    ] = 90.0
    interactive_names: Annotated[
        list[str], Meta(description="prefixes of the names of interactive jobs")
    ] = field(default_factory=lambda: ["interactive", "sys/dashboard"])

    gpu_idle_window: Annotated[
        Duration, Meta(description="gpu-idle: BAD if a GPU was unused for this long at the end")
    ] = Duration("60m")
    gpu_low_bad: Annotated[float, Meta(ge=0, le=100, description="gpu-low: BAD up to this %")] = (
        15.0
    )
    gpu_low_hint: Annotated[
        float, Meta(ge=0, le=100, description="gpu-low: a hint below this %")
    ] = 25.0
    gpu_low_interactive: Annotated[
        Duration, Meta(description="gpu-low: interactive jobs are judged after this time")
    ] = Duration("8h")
    gpu_low_spare_memory: Annotated[
        float,
        Meta(ge=0, le=100, description="gpu-low: only up to this % of GPU memory; 100: always"),
    ] = 100.0

    cpu_zero: Annotated[
        float, Meta(ge=0, le=100, description="cpu-zero: BAD up to this % of one core")
    ] = 0.2
    cpu_low_bad: Annotated[float, Meta(ge=0, le=100, description="cpu-low: BAD below this %")] = (
        65.0
    )
    cpu_low_hint: Annotated[
        float, Meta(ge=0, le=100, description="cpu-low: a hint up to this %")
    ] = 80.0
    cpu_target: Annotated[
        float, Meta(gt=0, le=100, description="cpu-low: the % that suggestions aim at")
    ] = 90.0
    serial_from: Annotated[float, Meta(ge=0, description="serial: more cores' work than this")] = (
        0.85
    )
    serial_to: Annotated[float, Meta(ge=0, description="serial: less cores' work than this")] = 1.01

    mem_limit_hint: Annotated[
        float, Meta(ge=0, le=100, description="mem-limit: a hint from this % of the limit")
    ] = 90.0
    mem_limit_pressure: Annotated[
        float, Meta(ge=0, le=100, description="mem-limit: a hint from this % of time waiting")
    ] = 10.0
    mem_excess_bad: Annotated[
        float, Meta(ge=0, le=100, description="mem-excess: BAD below this %")
    ] = 10.0
    mem_excess_hint: Annotated[
        float, Meta(ge=0, le=100, description="mem-excess: a hint below this %")
    ] = 70.0
    mem_excess_node: Annotated[
        float,
        Meta(ge=0, le=100, description="mem-excess: only below this % of a node's cores"),
    ] = 85.0
    mem_excess_per_gpu: Annotated[
        float, Meta(ge=0, description="mem-excess: GPU jobs only above this many GB per GPU")
    ] = 50.0
    mem_margin: Annotated[
        float, Meta(ge=0, le=1000, description="% that suggestions add to the peak")
    ] = 20.0
    default_memory_per_core: Annotated[
        float, Meta(ge=0, description="mem-excess: only above this many GB per core")
    ] = 2.0

    time_bad: Annotated[
        float, Meta(ge=0, le=100, description="time: BAD below this % of the limit")
    ] = 10.0
    time_hint: Annotated[
        float, Meta(ge=0, le=100, description="time: a hint below this % of the limit")
    ] = 60.0
    time_min_runtime: Annotated[
        Duration, Meta(description="time: only jobs that ran longer than this")
    ] = Duration("15m")

    threads_per_core: Annotated[
        float, Meta(gt=0, description="oversubscribed: a hint above this many running threads")
    ] = 1.25
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
    gpu_share_memory: Annotated[
        float, Meta(gt=0, description="gpu-share: a hint above this many shares of memory")
    ] = 1.04
    ended_early: Annotated[
        float,
        Meta(ge=0, le=100, description="ended-early: last third below this % of the first"),
    ] = 10.0
