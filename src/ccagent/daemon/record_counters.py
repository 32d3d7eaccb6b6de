"""Counters from records, and in envelopes (`extras = ["counters"]`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ccagent.counters import resident_memory
from ccagent.records.envelopes import (
    ClusterEnvelope,
    Envelope,
    JobsEnvelope,
    KVPair,
    SampleEnvelope,
    SysinfoEnvelope,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccagent.counters import AgentCounters, SinkCounters
    from ccagent.records.message import Record


def note_failures(records: Iterable[Record], failures: list[str]) -> Iterator[Record]:
    """Yield records. Add the errors of each envelope without data to `failures`.

    An agent whose source is down sends such an envelope and raises nothing.
    """
    for record in records:
        match record:
            case (
                ClusterEnvelope(data=None, errors=errors)
                | JobsEnvelope(data=None, errors=errors)
                | SampleEnvelope(data=None, errors=errors)
                | SysinfoEnvelope(data=None, errors=errors)
            ):
                failures += [error.detail for error in errors]
            case _:
                pass
        yield record


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
