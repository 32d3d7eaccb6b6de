"""Durations and sizes in the configuration: `30s`, `5m`, `12h`, `1d`; `512MB`, `8G`."""

from __future__ import annotations

import re
from typing import Self

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_FORM = re.compile(r"(\d{1,9})(ms|[smhd])")
_SIZE = re.compile(r"([0-9]{1,9})\s*(B|[KMGT]B?)", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return a size such as `64MB` in bytes. Raise ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size such as '512MB' or '8GB'")
    return int(match[1]) << 10 * "BKMGT".index(match[2][0].upper())


class Duration:
    """A duration, written as a number with a unit: ms, s, m, h or d."""

    def __init__(self, text: str) -> None:
        match = _FORM.fullmatch(text.strip().lower())
        if match is None:
            raise ValueError(f"{text!r} is not a duration such as '30s', '5m', '12h' or '1d'")
        number, unit = int(match[1]), match[2]
        self.seconds: float = number / 1000 if unit == "ms" else float(number * _UNITS[unit])
        self._text = f"{number}{unit}"

    @classmethod
    def parse(cls, value: object) -> Self:
        """Return the duration of a configured value. Raise ValueError with the reason."""
        if not isinstance(value, str):
            raise ValueError(f"{value!r} is not a duration: write it as a string such as '30s'")  # noqa: TRY004 - msgspec reports only ValueError
        return cls(value)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Duration) and self.seconds == other.seconds

    def __hash__(self) -> int:
        return hash(self.seconds)


class Cadence(Duration):
    """An interval with the same times each day.

    Seconds must divide a minute, minutes an hour, hours a day. A number of whole days is also
    valid.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        seconds = self.seconds
        if seconds >= _UNITS["d"] and seconds % _UNITS["d"] == 0:
            return
        for unit, whole, name in (
            (1, 60, "a minute"),
            (60, 3600, "an hour"),
            (3600, 86400, "a day"),
        ):
            if seconds <= whole:
                choices = [n * unit for n in range(1, whole // unit + 1) if whole % (n * unit) == 0]
                if seconds not in choices:
                    raise ValueError(
                        f"{text!r} does not divide {name}; nearest: {_nearest(choices, seconds)}"
                    )
                return
        raise ValueError(f"{text!r} is more than a day, but not a number of whole days")


def _nearest(choices: list[int], seconds: float) -> str:
    """Return the valid choices next to `seconds` as text."""
    below = [c for c in choices if c < seconds][-1:]
    above = [c for c in choices if c > seconds][:1]
    return " or ".join(f"'{_write(c)}'" for c in below + above)


def _write(seconds: int) -> str:
    for unit in ("d", "h", "m"):
        if seconds % _UNITS[unit] == 0:
            return f"{seconds // _UNITS[unit]}{unit}"
    return f"{seconds}s"
