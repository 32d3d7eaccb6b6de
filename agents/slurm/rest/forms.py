"""Forms of values in answers of slurmrestd, from v0.0.38 (Slurm 22.05) to v0.0.46 (26.11).

In v0.0.38 numbers are numbers or null. Later many are objects `{set, infinite, number}`, and
states and exit statuses are lists. Each function accepts all forms, and returns nothing for others:
what an answer lacks is what a program prints as empty.

Source: the OpenAPI documents of each release.
"""

from __future__ import annotations

from typing import Any, cast

INFINITE = "infinite"
"""The value of a number without limit."""

_NO_VALUES = frozenset({2**32 - 2, 2**64 - 2, -2})
"""NO_VAL and NO_VAL64 of slurm.h, also as a signed number: a value that is not set."""

_INFINITE_VALUES = frozenset({2**32 - 1, 2**64 - 1})
"""INFINITE and INFINITE64 of slurm.h."""

_FLAGS = (
    "COMPLETING", "STAGE_OUT", "CONFIGURING", "EXPEDITING", "RESIZING", "REQUEUED", "REQUEUE_FED",
    "REQUEUE_HOLD", "SPECIAL_EXIT", "STOPPED", "REVOKED", "RESV_DEL_HOLD", "SIGNALING",
)  # fmt: skip
"""Flags of a job's state, in the order in which Slurm's programs show one of them."""

_SIGNALED = 0x7F
_CODE = 8


def at(record: Any, *path: str) -> Any:
    """Return the value at a path of keys; None without it."""
    for key in path:
        record = fields(record).get(key)
    return record


def fields(value: Any) -> dict[str, Any]:
    """Return an object; empty for another form."""
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def listed(value: Any) -> list[Any]:
    """Return a list; empty for another form."""
    return cast("list[object]", value) if isinstance(value, list) else []


def words(value: Any) -> list[str]:
    """Return the texts of a list, or a single text."""
    return [one for one in listed(value) or [value] if isinstance(one, str)]


def number(value: Any) -> int | None:
    """Return a number; None for no value, for no limit and for another form."""
    if found := fields(value):
        value = found.get("number") if found.get("set") else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    whole = int(value) if abs(value) < 2**64 else None
    return None if whole in _NO_VALUES or whole in _INFINITE_VALUES else whole


def is_infinite(value: Any) -> bool:
    """Return whether a number has no limit."""
    if found := fields(value):
        return found.get("infinite") is True
    return isinstance(value, int) and value in _INFINITE_VALUES


def text(value: Any) -> bytes:
    """Return a text, with a number as digits; empty for null, an object or a list."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace")
    return digits(value)


def digits(value: Any) -> bytes:
    """Return a number as digits; empty without one."""
    return b"" if (found := number(value)) is None else b"%d" % found


def moment(value: Any) -> bytes:
    """Return seconds since 1970; `Unknown` for 0 and for no value, as the programs print."""
    found = number(value)
    return b"%d" % found if found and found > 0 else b"Unknown"


def state(value: Any) -> bytes:
    """Return a state as one word: of a list the flag that the programs show, else the first."""
    if isinstance(value, str):
        return value.upper().encode()
    found = words(value)
    shown = next((flag for flag in _FLAGS if flag in found), found[0] if found else "")
    return shown.encode("utf-8", "backslashreplace")


def exit_code(value: Any, *, is_reduced: bool = True) -> bytes:
    """Return `CODE:SIGNAL` of an exit status, as sacct prints it.

    is_reduced: sacct subtracts 128 from larger codes. Since Slurm 25.11 it does not.
    It is an object with return_code and signal, or until v0.0.39 in /slurm the number of wait(2).
    """
    status = number(value)
    if status is not None:
        signal = status & _SIGNALED
        code = 0 if signal else status >> _CODE & 0xFF
    else:
        signals = (at(value, "signal", "id"), at(value, "signal", "signal_id"))
        signal = next((one for one in map(number, signals) if one), 0)
        # A negative code stands for a signal in v0.0.39.
        code = 0 if signal else max(0, number(at(value, "return_code")) or 0)
    return b"%d:%d" % (code - 128 if is_reduced and code >= 128 else code, signal)


def duration(seconds: int, microseconds: int = 0) -> bytes:
    """Return `[DD-]HH:MM:SS`, or `MM:SS.mmm` below an hour, as sacct prints CPU times."""
    more, microseconds = divmod(max(0, microseconds), 1_000_000)
    minutes, second = divmod(max(0, seconds) + more, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return b"%d-%02d:%02d:%02d" % (days, hour, minute, second)
    if not hour and microseconds >= 1000:
        return b"%02d:%02d.%03d" % (minute, second, microseconds // 1000)
    return b"%02d:%02d:%02d" % (hour, minute, second)


def tres(value: Any) -> bytes:
    """Return a TRES list as sacct prints it: `cpu=4,gres/gpu:a100=1,mem=400M`, sorted.

    It is a list of objects with type, name and count, or a text.
    """
    if isinstance(value, str):
        return ",".join(sorted(filter(None, value.split(",")))).encode()
    found: list[str] = []
    for one in listed(value):
        kind, count = at(one, "type"), at(one, "count")
        amount = number(count)
        if not isinstance(kind, str) or (amount is None and count != -1):
            continue
        name = at(one, "name")
        shown = "NONE" if amount is None or amount < 0 else str(amount)
        unit = "M" if kind in {"mem", "bb"} and shown.isdecimal() else ""
        found.append(f"{kind}{f'/{name}' if name else ''}={shown}{unit}")
    return ",".join(sorted(found)).encode("utf-8", "backslashreplace")


def tres_count(value: Any, kind: str, name: str = "") -> int | None:
    """Return the count of one resource of a TRES list; None without it."""
    for one in listed(value):
        if at(one, "type") == kind and (at(one, "name") or "") == name:
            found = number(at(one, "count"))
            return found if found is not None and found >= 0 else None
    return None
