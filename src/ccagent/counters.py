"""What ccagent counts of itself, since its start."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import msgspec

from ccagent.records.envelopes import Envelope, KVPair

if TYPE_CHECKING:
    from collections.abc import Generator

    from ccagent.machine.clock import Clock
    from ccagent.records.message import Record


class AgentCounters(msgspec.Struct, rename="kebab"):
    """One agent.

    samples: taken and handed on. errors: samples that failed. skipped: ticks at which it was
    still busy. seconds, cpu_seconds: spent in samples, those of its thread. unencodable: records
    that its format can't express, and that were left out. restarts: of its thread, after an error
    that no agent may raise.
    """

    samples: int = 0
    errors: int = 0
    skipped: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    unencodable: int = 0
    restarts: int = 0

    @contextlib.contextmanager
    def counted(self, clock: Clock) -> Generator[None]:
        """Count what happens inside as a sample, or as an error if it raises."""
        begin, cpu = clock.monotonic(), time.thread_time()
        try:
            yield
        except BaseException:
            self.errors += 1
            raise
        else:
            self.samples += 1
        finally:
            self.seconds += clock.monotonic() - begin
            self.cpu_seconds += time.thread_time() - cpu


class SinkCounters(msgspec.Struct, rename="kebab"):
    """One sink, in messages.

    queued: put into the queue. waiting: in the queue now; waiting_bytes: their size. sent: handed
    to the transport, repetitions included. acknowledged: taken by the receiver. retried: to be sent
    again after a failure. refused: dead letters, which the receiver will never take. dropped:
    deleted because the queue was too large or they were too old. damaged: dead letters because they
    could not be decoded. restarts: unforeseen errors after which the sink went on.
    last_error: the last error of the transport; empty since a batch was taken without trouble.
    queue_error: why the disk can't be used at present, so that messages wait in memory.
    """

    queued: int = 0
    waiting: int = 0
    waiting_bytes: int = 0
    sent: int = 0
    acknowledged: int = 0
    retried: int = 0
    refused: int = 0
    dropped: int = 0
    damaged: int = 0
    restarts: int = 0
    last_error: str = ""
    queue_error: str = ""


class Counters(msgspec.Struct, frozen=True):
    """All agents and all sinks of a daemon, by name."""

    agents: dict[str, AgentCounters]
    sinks: dict[str, SinkCounters]


def with_counters(record: Record, agent: AgentCounters, sinks: dict[str, SinkCounters]) -> Record:
    """Add counters to `meta.attrs` of an envelope: `ccagent.samples`, `ccagent.SINK.sent`, ..."""
    if not isinstance(record, Envelope):
        return record
    pairs = _pairs("ccagent", agent)
    for name, counters in sinks.items():
        pairs += _pairs(f"ccagent.{name}", counters)
    pairs.append(KVPair(key="ccagent.resident-memory", value=str(resident_memory())))
    meta = msgspec.structs.replace(record.meta, attrs=[*record.meta.attrs, *pairs])
    return msgspec.structs.replace(record, meta=meta)


def resident_memory() -> int:
    """Give the memory of this process in KB (/proc/self/statm: resident); 0 if unknown."""
    try:
        with open("/proc/self/statm", "rb") as file:
            pages = int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    import resource

    return pages * resource.getpagesize() // 1024


def _pairs(prefix: str, counters: AgentCounters | SinkCounters) -> list[KVPair]:
    values = msgspec.to_builtins(counters)
    return [
        KVPair(
            key=f"{prefix}.{key}", value=f"{value:.3f}" if isinstance(value, float) else str(value)
        )
        for key, value in values.items()
    ]
