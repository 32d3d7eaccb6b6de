"""Parser for the SMART / Health Information log of NVMe drives (log identifier 02h).

Source: NVM Express Base Specification, Get Log Page, figure "SMART / Health Information Log Page".
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ccagent.errors import UnparsableError

LOG_SIZE = 512

# From byte 0: warning, temperature, spare, spare threshold, percentage used. From byte 32: ten
# counters of 16 bytes. From byte 192: two times. From byte 200: eight sensors.
_HEAD = struct.Struct("<BHBBB")
_COUNTERS_AT, _COUNTER_SIZE = 32, 16
_COUNTERS = 10
_TIMES = struct.Struct("<II")
_TIMES_AT = 192
_SENSORS = struct.Struct("<8H")
_SENSORS_AT = 200
_DATA_UNIT = 512_000
_ZERO_CELSIUS = 273
_HOTTEST = 1000


class SmartLog(NamedTuple):
    """Health of a drive.

    critical_warning: bits, 0 without a warning. temperature: degrees Celsius of the whole drive,
    None without a sensor. sensors: degrees Celsius by number from 1. spare, spare_threshold,
    percentage_used: percent; percentage_used is at most 255. Counters cover the drive's life:
    bytes, commands, seconds.
    """

    critical_warning: int
    temperature: int | None
    spare: int
    spare_threshold: int
    percentage_used: int
    bytes_read: int
    bytes_written: int
    host_reads: int
    host_writes: int
    busy_time: int
    power_cycles: int
    power_on_time: int
    unsafe_shutdowns: int
    media_errors: int
    error_log_entries: int
    warning_temperature_time: int
    critical_temperature_time: int
    sensors: dict[int, int]


def parse_smart_log(content: bytes) -> SmartLog:
    """Parse the 512 bytes of the log. Raise UnparsableError if they are invalid."""
    if len(content) != LOG_SIZE:
        raise UnparsableError(f"SMART log of {len(content)} bytes, not {LOG_SIZE}")
    warning, kelvin, spare, threshold, used = _HEAD.unpack_from(content)
    # Drives without a log return all bits 0 or all bits 1.
    if not any(content) or not any(byte ^ 0xFF for byte in content[:_TIMES_AT]):
        raise UnparsableError("SMART log without content")
    if spare > 100 or threshold > 100:
        raise UnparsableError(f"SMART log with a spare of {spare} %, threshold {threshold} %")
    counters = [
        int.from_bytes(content[start : start + _COUNTER_SIZE], "little")
        for start in range(_COUNTERS_AT, _COUNTERS_AT + _COUNTERS * _COUNTER_SIZE, _COUNTER_SIZE)
    ]
    read, written, reads, writes, busy, cycles, hours, shutdowns, errors, entries = counters
    warning_minutes, critical_minutes = _TIMES.unpack_from(content, _TIMES_AT)
    sensors = {
        number: degrees
        for number, each in enumerate(_SENSORS.unpack_from(content, _SENSORS_AT), 1)
        if (degrees := _celsius(each)) is not None
    }
    return SmartLog(
        critical_warning=warning,
        temperature=_celsius(kelvin),
        spare=spare,
        spare_threshold=threshold,
        percentage_used=used,
        bytes_read=read * _DATA_UNIT,
        bytes_written=written * _DATA_UNIT,
        host_reads=reads,
        host_writes=writes,
        busy_time=busy * 60,
        power_cycles=cycles,
        power_on_time=hours * 3600,
        unsafe_shutdowns=shutdowns,
        media_errors=errors,
        error_log_entries=entries,
        warning_temperature_time=warning_minutes * 60,
        critical_temperature_time=critical_minutes * 60,
        sensors=sensors,
    )


def _celsius(kelvin: int) -> int | None:
    """Return degrees Celsius; None for a missing sensor (0) or an implausible value."""
    return kelvin - _ZERO_CELSIUS if 0 < kelvin <= _HOTTEST else None
