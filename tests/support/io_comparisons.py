"""Differences between what a program of the emulated machine did and what was counted of it."""

from __future__ import annotations

from typing import Any

Result = dict[str, Any]

OF_THE_FILE_SYSTEM = {"overlay listing": {"stats"}, "overlay read_write": {"fsyncs"}}
"""Operations that a file system does by itself, beside those of the program."""

FETCHING = ("ext4", "nfs", "fuse")
"""File systems whose mapped files have faults: tmpfs fetches nothing, overlay maps other files."""

_EIGHT_WRITES = {"writes": 8, "write_bytes": 8 << 20}
_OF_DD = {
    "dd": _EIGHT_WRITES,
    "dd direct": _EIGHT_WRITES,
    "dd direct read": {"reads": 129, "read_bytes": 8 << 20},  # the last one is the end
}


def differences(name: str, found: Result) -> Result:
    """Return expected and counted values that are not equal; empty if all are.

    name: of a scenario of io_scenarios.count_known_programs; found: its result.
    """
    if "error" in found:
        return {"error": found["error"]}
    kind, _, script = name.partition(" ")
    if kind == "network":
        return _of_traffic(script, found)
    if kind == "fio":
        return _of_requests(found["told"], found["counted"])
    if name in _OF_DD:
        return unequal(_OF_DD[name], {each: found.get(each) for each in _OF_DD[name]})
    own = OF_THE_FILE_SYSTEM.get(name, set())
    expected, counted = (
        {each: value for each, value in found[values].items() if each not in own}
        for values in ("expected", "counted")
    )
    if (
        script == "mmap" and kind in FETCHING
    ):  # how many pages a fault fetches is the kernel's choice
        expected["major_faults"] = max(1, counted.get("major_faults", 0))
    return unequal(expected, counted)


def unequal(expected: Result, counted: Result) -> Result:
    """Return the values that are not equal, as `expected, counted`."""
    return {
        name: (expected.get(name, 0), counted.get(name, 0))
        for name in expected | counted
        if expected.get(name, 0) != counted.get(name, 0)
    }


def _of_traffic(script: str, found: Result) -> Result:
    kind = script[:3] + ("" if script.endswith("_veth") else " loopback")
    # A datagram without payload is no transfer.
    expected = {
        name: number - (script == "udp" and name in {"sends", "receives"})
        for name, number in found["expected"].items()
    }
    counted = found["counted"].get(kind, {})
    others = {name: (None, traffic) for name, traffic in found["counted"].items() if name != kind}
    return unequal(expected, {name: counted.get(name, 0) for name in expected}) | others


def _of_requests(told: Result, counted: Result) -> Result:
    expected: Result = {"read_bytes": 0, "write_bytes": 0}
    for kind in ("read", "write"):
        expected[f"async_{kind}s"] = told[f"{kind}_calls"]
        expected[f"async_{kind}_bytes"] = told[f"{kind}_size"]
    return unequal(expected, {name: counted.get(name, 0) for name in expected})
