"""Formats of amounts, for people and for Slurm's options."""

from __future__ import annotations

import math

GB = 1024.0**3
"""Bytes of Slurm's `G`. Reports write GB."""

_STEPS = ((30, 1), (100, 5), (1000, 10), (math.inf, 100))
"""Pairs of maximum and step in GB: a request up to the maximum is rounded up to the step."""


def clock(seconds: float) -> str:
    """Return seconds in Slurm's format: `0:41:07`, `3-02:00:00`."""
    whole = max(0, int(seconds))
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    if days:
        return f"{days}-{hours:02d}:{minutes:02d}:{rest:02d}"
    return f"{hours}:{minutes:02d}:{rest:02d}"


def number(value: float) -> str:
    """Return a number with about three significant digits: `0.24`, `6.2`, `96`, `1203`."""
    if not math.isfinite(value):
        return "?"
    size = abs(value)
    if size >= 99.95 or value == int(value):
        return f"{value:.0f}"
    if size >= 9.995:
        return f"{value:.1f}".removesuffix(".0")
    return f"{value:.2f}".rstrip("0").rstrip(".")


def percent(value: float) -> str:
    """Return percent, without decimals above 10. Values are never rounded to 100 or to 0."""
    if not math.isfinite(value):
        return "?"
    if value >= 9.95:
        text = f"{value:.0f}"
        return "99.9" if text == "100" and value < 100 else text
    text = f"{value:.1f}".removesuffix(".0")
    return "<0.1" if text == "0" and value > 0 else text


def gigabytes(size: float) -> str:
    """Return bytes in GB, without the unit."""
    return number(size / GB)


def memory(size: float) -> str:
    """Return bytes with a suitable unit: `32 GB`, `60 MB`."""
    if size < GB:
        return f"{number(size / 1024**2)} MB"
    return f"{gigabytes(size)} GB"


def memory_of(used: float, total: float) -> str:
    """Return used and total bytes: `46.6 of 64 GB`, `1.2 of 200 MB`."""
    if total < GB:
        return f"{number(used / 1024**2)} of {memory(total)}"
    if used < 0.1 * GB:
        return f"{memory(used)} of {memory(total)}"
    return f"{gigabytes(used)} of {memory(total)}"


def core_time(seconds: float) -> str:
    """Return core seconds in hours, minutes or seconds: `205.5 core-h`, `12 core-s`."""
    for size, unit in ((3600, "h"), (60, "min"), (1, "s")):
        if seconds >= size:
            return f"{number(seconds / size)} core-{unit}"
    return "0 core-s"


def cores(count: float) -> str:
    """Return a number of cores: `1 core`, `0.22 cores`."""
    text = number(count)
    return "1 core" if text == "1" else f"{text} cores"


def request_memory(size: float) -> str:
    """Return bytes rounded up for `--mem`: `40G`, `600M`."""
    if size <= 0.95 * GB:
        return f"{max(100, math.ceil(size / 1024**2 / 100) * 100)}M"
    needed = size / GB
    step = next(step for limit, step in _STEPS if needed <= limit)
    return f"{math.ceil(needed / step) * step}G"


def request_time(seconds: float) -> str:
    """Return seconds rounded up to a quarter of an hour for `--time`: `1:30:00`."""
    step = 900 if seconds <= 4 * 3600 else 3600
    return clock(math.ceil(seconds / step) * step)


def plural(count: int, thing: str) -> str:
    """Return a number and a noun: `1 core`, `2 cores`."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"
