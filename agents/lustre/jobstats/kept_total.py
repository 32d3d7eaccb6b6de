"""Kept counters of a target or job that has no entries at present, or from before a restart."""

from __future__ import annotations

import msgspec


class KeptTotal(msgspec.Struct, array_like=True):
    """stype, stype_id: scope. seen: seconds since 1970. counters: by metric, as MessagePack."""

    stype: str
    stype_id: str
    seen: float
    counters: bytes
