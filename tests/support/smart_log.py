"""SMART logs of NVMe drives, composed in the layout of the specification."""

from __future__ import annotations

import struct
from collections.abc import Sequence


def smart_log(
    *,
    warning: int = 0,
    kelvin: int = 310,
    spare: int = 100,
    used: int = 0,
    counters: Sequence[int] = (),
    minutes: tuple[int, int] = (0, 0),
    sensors: Sequence[int] = (),
) -> bytes:
    """Return the 512 bytes of a log.

    counters: data units read and written, commands read and written, minutes busy, power cycles,
    hours switched on, unsafe shutdowns, media errors, entries of the error log.
    """
    log = bytearray(512)
    log[:6] = struct.pack("<BHBBB", warning, kelvin, spare, 10, used)
    for index, value in enumerate(counters):
        log[32 + 16 * index : 48 + 16 * index] = value.to_bytes(16, "little")
    log[192:200] = struct.pack("<II", *minutes)
    log[200 : 200 + 2 * len(sensors)] = struct.pack(f"<{len(sensors)}H", *sensors)
    return bytes(log)
