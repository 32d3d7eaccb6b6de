"""Formats of amounts: for columns, for reports and Slurm's options, for pages."""

from __future__ import annotations

import math
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_LETTERS = "KMGTPE"


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """Return the mean without unknown values; None if all are unknown."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def short_size(size: float | None) -> str:
    """Return bytes in at most five characters, in powers of 1024: `0`, `512`, `4.4G`, `101G`."""
    if size is None:
        return "-"
    size = max(0.0, size)
    if size < 999.5:
        return f"{size:.0f}"
    for letter in _LETTERS:
        size /= 1024
        if size < 9.95:
            return f"{size:.1f}{letter}".replace(".0", "")
        if size < 999.5 or letter == _LETTERS[-1]:
            return f"{min(size, 9999):.0f}{letter}"
    return "-"


def short_pair(used: float | None, total: float | None) -> str:
    """Return an amount and its limit in bytes, with one unit if it is the same: `101/120G`."""
    if total is None or used is None:
        return short_size(used)
    left, right = short_size(used), short_size(total)
    if left[-1:] == right[-1:] and right[-1:] in _LETTERS:
        left = left[:-1]
    return f"{left}/{right}"


def short_percent(value: float | None) -> str:
    """Return percent without the sign in at most four characters; `-` if unknown."""
    if value is None:
        return "-"
    if 0 < value <= 0.5:  # 0.5 is rounded to the even 0
        return "<1"
    return f"{min(value, 9999):.0f}"


def short_time(seconds: float | None) -> str:
    """Return a duration in seconds as `0:05`, `3:12:40` or `12d`."""
    if seconds is None:
        return "-"
    days, hours, minutes, rest = _split_time(seconds)
    if days:
        return f"{days}d" if days >= 10 else f"{days}d{hours:02d}h"
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _split_time(seconds: float) -> tuple[int, int, int, int]:
    """Return days, hours, minutes and seconds."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return *divmod(hours, 24), minutes, rest


def short_number(value: float) -> str:
    """Return a number with at most four significant digits: `0.0013`, `12.5`, `48210`."""
    if value != value or value in {float("inf"), float("-inf")}:  # noqa: PLR0124 - NaN
        return str(value)
    if value == int(value) and abs(value) < 1e9:
        return f"{value:.0f}"
    if abs(value) >= 1000:
        return f"{value:.0f}" if abs(value) < 1e9 else f"{value:.3g}"
    return f"{value:.4g}"


GB = 1024.0**3
"""Bytes of Slurm's `G`. Reports write GB."""

_REQUEST_STEPS = ((30, 1), (100, 5), (1000, 10), (math.inf, 100))
"""Pairs of maximum and step in GB: a request up to the maximum is rounded up to the step."""


def clock(seconds: float) -> str:
    """Return seconds in Slurm's format: `0:41:07`, `3-02:00:00`."""
    days, hours, minutes, rest = _split_time(seconds)
    text = f"{minutes:02d}:{rest:02d}"
    return f"{days}-{hours:02d}:{text}" if days else f"{hours}:{text}"


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
    step = next(step for limit, step in _REQUEST_STEPS if needed <= limit)
    return f"{math.ceil(needed / step) * step}G"


def request_time(seconds: float) -> str:
    """Return seconds rounded up to a quarter of an hour for `--time`: `1:30:00`."""
    step = 900 if seconds <= 4 * 3600 else 3600
    return clock(math.ceil(seconds / step) * step)


def plural(count: int, thing: str) -> str:
    """Return a number and a noun: `1 core`, `2 cores`."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


NOT_KNOWN = "unknown"
"""The text for a missing measurement, instead of 0."""

_PREFIXES = ("", "k", "M", "G", "T", "P", "E")
_DAY = 86400
_FAR = 10**11


def format_number(value: float | None, digits: int = 3) -> str:
    """Return a number with about three significant digits: `0.25`, `12.5`, `1,234`."""
    if value is None or not math.isfinite(value):
        return NOT_KNOWN
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    decimals = max(0, digits - 1 - math.floor(math.log10(size)))
    text = f"{value:.{min(decimals, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_quantity(value: float | None, unit: str) -> str:
    """Return a value with unit and prefix: `1.5 GiB`, `380 W`, `97 %`, `0.75 /s`."""
    if value is None or not math.isfinite(value):
        return NOT_KNOWN
    match unit:
        case "%":
            return f"{format_number(value)} %"
        case "degC":
            return f"{format_number(value)} °C"
        case "s":
            return _format_short_time(value)
        case "" | "1/s":
            text = format_number(value) if abs(value) < 100_000 else _scale(value, 1000, 1.0)
            return f"{text} {unit.removeprefix('1')}".rstrip()
        case "B":
            text = _scale(value, 1024, 0.9995, " ")
            return f"{text[:-1]}{text[-1].upper()}iB" if text[-1].isalpha() else f"{text}B"
        case _:
            return _scale(value, 1000, 0.9995, " ") + unit


def _scale(value: float, base: int, border: float, space: str = "") -> str:
    """Return a value with a prefix. border: share of the base from which the prefix changes."""
    size, step = abs(value), 0
    while size >= base * border and step < len(_PREFIXES) - 1:
        size /= base
        step += 1
    return f"{format_number(math.copysign(size, value))}{space}{_PREFIXES[step]}"


def _format_short_time(seconds: float) -> str:
    """Return the duration of an operation in seconds as `1.2 ms` or `3 s`."""
    size = abs(seconds)
    factor, unit = (1.0, "s") if size >= 1 else (1e-3, "ms") if size >= 1e-3 else (1e-6, "µs")
    return f"{format_number(seconds / factor)} {unit}" if seconds else "0 s"


def format_share(part: float | None, whole: float | None) -> str:
    """Return a part of a whole in percent."""
    if part is None or not whole or not math.isfinite(part):
        return NOT_KNOWN
    return f"{format_number(100 * part / whole, 2)} %"


def format_duration(seconds: float | None) -> str:
    """Return seconds in Slurm's format: `0:41:07`, `2-03:00:00`."""
    return NOT_KNOWN if seconds is None else clock(seconds)


def format_age(seconds: float | None) -> str:
    """Return an age in seconds as `12 s`, `5 min`, `3 h` or `2 days`."""
    if seconds is None:
        return NOT_KNOWN
    for limit, factor, unit in ((120, 1, "s"), (7200, 60, "min"), (2 * _DAY, 3600, "h")):
        if seconds < limit:
            return f"{max(0, int(seconds // factor))} {unit}"
    return f"{int(seconds // _DAY)} days"


def format_time(moment: float | None, zone: tzinfo | None = None) -> str:
    """Return a time: `2026-11-22 20:15`. zone: None: of this machine."""
    if moment is None or not 0 <= moment < _FAR:
        return NOT_KNOWN
    return f"{datetime.fromtimestamp(moment, zone):%Y-%m-%d %H:%M}"


def format_clock(moment: float, span: float, zone: tzinfo | None = None) -> str:
    """Return a time for the label of an axis. span: of the axis, in seconds.

    zone: None: of this machine.
    """
    form = "%d %b" if span > 3 * _DAY else ("%H:%M" if span > 600 else "%H:%M:%S")
    return datetime.fromtimestamp(moment, zone).strftime(form)
