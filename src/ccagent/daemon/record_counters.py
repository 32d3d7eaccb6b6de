"""Counters of the daemon in its envelopes (`extras = ["counters"]`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ccagent.counters import resident_memory
from ccagent.records.envelopes import Envelope, KVPair

if TYPE_CHECKING:
    from ccagent.counters import AgentCounters, SinkCounters
    from ccagent.records.message import Record


def add_counters(record: Record, agent: AgentCounters, sinks: dict[str, SinkCounters]) -> Record:
    """Add counters to `meta.attrs` of an envelope: `ccagent.samples`, `ccagent.SINK.sent`, ..."""
    if not isinstance(record, Envelope):
        return record
    pairs = _pairs("ccagent", agent)
    for name, counters in sinks.items():
        pairs += _pairs(f"ccagent.{name}", counters)
    pairs.append(KVPair(key="ccagent.resident-memory", value=str(resident_memory())))
    meta = msgspec.structs.replace(record.meta, attrs=[*record.meta.attrs, *pairs])
    return msgspec.structs.replace(record, meta=meta)


def _pairs(prefix: str, counters: AgentCounters | SinkCounters) -> list[KVPair]:
    values = msgspec.to_builtins(counters)
    return [
        KVPair(
            key=f"{prefix}.{key}", value=f"{value:.3f}" if isinstance(value, float) else str(value)
        )
        for key, value in values.items()
    ]
