"""Short formats of amounts, for columns."""

from __future__ import annotations

_LETTERS = "KMGTPE"


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
    if 0 < value < 0.5:
        return "<1"
    return f"{min(value, 9999):.0f}" if value < 9999 else "9999"


def short_time(seconds: float | None) -> str:
    """Return a duration in seconds as `0:05`, `3:12:40` or `12d`."""
    if seconds is None:
        return "-"
    whole = max(0, int(seconds))
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    if days >= 10:
        return f"{days}d"
    if days:
        return f"{days}d{hours:02d}h"
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def short_number(value: float) -> str:
    """Return a number with at most four significant digits: `0.0013`, `12.5`, `48210`."""
    if value != value or value in {float("inf"), float("-inf")}:  # noqa: PLR0124 - NaN
        return str(value)
    if value == int(value) and abs(value) < 1e9:
        return f"{value:.0f}"
    if abs(value) >= 1000:
        return f"{value:.0f}" if abs(value) < 1e9 else f"{value:.3g}"
    return f"{value:.4g}"
