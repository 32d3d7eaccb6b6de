"""Formats of numbers, sizes, durations and times for people."""

from __future__ import annotations

import math
import time

NOT_KNOWN = "unknown"
"""The text for a missing measurement, instead of 0."""

_STEPS = ("", "k", "M", "G", "T", "P", "E")
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
    """Return a value with unit and SI prefix: `1.5 GB`, `380 W`, `97 %`."""
    if value is None or not math.isfinite(value):
        return NOT_KNOWN
    if unit == "%":
        return f"{format_number(value)} %"
    if unit in {"", "1/s", "degC"}:
        shown = "°C" if unit == "degC" else unit
        return f"{_with_prefix(value) if unit != 'degC' else format_number(value)} {shown}".strip()
    if unit == "s":
        return format_short_time(value)
    size, step, base = abs(value), 0, base_of(unit)
    while size >= base * 0.9995 and step < len(_STEPS) - 1:
        size /= base
        step += 1
    return f"{format_number(math.copysign(size, value))} {_STEPS[step]}{unit}"


def base_of(unit: str) -> int:
    """Return the factor between prefixes: 1024 for memory, as in Slurm, else 1000."""
    return 1024 if unit == "B" else 1000


def _with_prefix(value: float) -> str:
    if abs(value) < 100_000:
        return format_number(value)
    size, step = abs(value), 0
    while size >= 1000 and step < len(_STEPS) - 1:
        size /= 1000
        step += 1
    return f"{format_number(math.copysign(size, value))}{_STEPS[step]}"


def format_short_time(seconds: float) -> str:
    """Return the duration of an operation in seconds as `1.2 ms` or `3 s`."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(seconds) >= factor or unit == "µs":
            return "0 s" if not seconds else f"{format_number(seconds / factor)} {unit}"
    return NOT_KNOWN


def format_share(part: float | None, whole: float | None) -> str:
    """Return a part of a whole in percent."""
    if part is None or not whole or not math.isfinite(part):
        return NOT_KNOWN
    return f"{format_number(100 * part / whole, 2)} %"


def format_duration(seconds: float | None) -> str:
    """Return seconds in Slurm's format: `0:41:07`, `2-03:00:00`."""
    if seconds is None:
        return NOT_KNOWN
    whole = max(0, int(seconds))
    days, rest = divmod(whole, _DAY)
    hours, rest = divmod(rest, 3600)
    text = (
        f"{hours:02}:{rest // 60:02}:{rest % 60:02}"
        if days
        else (f"{hours}:{rest // 60:02}:{rest % 60:02}")
    )
    return f"{days}-{text}" if days else text


def format_age(seconds: float | None) -> str:
    """Return an age in seconds as `12 s`, `5 min`, `3 h` or `2 days`."""
    if seconds is None:
        return NOT_KNOWN
    for limit, factor, unit in ((120, 1, "s"), (7200, 60, "min"), (2 * _DAY, 3600, "h")):
        if seconds < limit:
            return f"{max(0, int(seconds // factor))} {unit}"
    return f"{int(seconds // _DAY)} days"


def format_time(moment: float | None) -> str:
    """Return a time in the server's time zone: `2026-11-22 20:15`."""
    if moment is None or not 0 <= moment < _FAR:
        return NOT_KNOWN
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))


def format_clock(moment: float, span: float) -> str:
    """Return a time for the label of an axis. span: of the axis, in seconds."""
    form = "%d %b" if span > 3 * _DAY else ("%H:%M" if span > 600 else "%H:%M:%S")
    return time.strftime(form, time.localtime(moment))
