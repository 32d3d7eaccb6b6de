"""Counters of ccagent's own work since its start."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


class AgentCounters(msgspec.Struct, rename="kebab"):
    """Counters of one agent.

    samples: finished samples. errors: failed samples. skipped: samples not taken, because the last
    sample still ran. seconds, cpu_seconds: duration of samples, CPU time of the thread.
    unencodable: records omitted because their format can't express them. restarts: of the thread,
    after an unforeseen error. last_error: the reason, if the last sample failed.
    """

    samples: int = 0
    errors: int = 0
    skipped: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    unencodable: int = 0
    restarts: int = 0
    last_error: str = ""

    @contextlib.contextmanager
    def count_sample(self, monotonic: Callable[[], float]) -> Generator[list[str]]:
        """Count the body as a sample, or as an error if it raises or adds a reason to the list."""
        begin, cpu = monotonic(), time.thread_time()
        failures: list[str] = []
        try:
            yield failures
        except BaseException as error:
            failures.append(str(error) or type(error).__name__)
            raise
        finally:
            if failures:
                self.errors += 1
            else:
                self.samples += 1
            self.last_error = failures[-1] if failures else ""
            self.seconds += monotonic() - begin
            self.cpu_seconds += time.thread_time() - cpu


class SinkCounters(msgspec.Struct, rename="kebab"):
    """Counters of one sink, in messages.

    queued: added to the queue. backlog: in the queue now; backlog_bytes: their size. sent: passed
    to the transport, including repetitions. acknowledged: accepted by the receiver. retried: to be
    sent again after a failure. rejected: dead letters that the receiver never accepts. dropped:
    deleted because the queue was too large or they were too old. refused: not queued because the
    queue was full. damaged: damaged parts of files, and undecodable messages. restarts: unforeseen
    errors after which the sink continued. last_error: the last error of the transport; empty after
    a batch without errors.
    queue_error: the reason why the disk can't be used and the queue is in memory, or files of
    other sinks or machines in the directory of the queue.
    """

    queued: int = 0
    backlog: int = 0
    backlog_bytes: int = 0
    sent: int = 0
    acknowledged: int = 0
    retried: int = 0
    rejected: int = 0
    dropped: int = 0
    refused: int = 0
    damaged: int = 0
    restarts: int = 0
    last_error: str = ""
    queue_error: str = ""


class DaemonCounters(msgspec.Struct, frozen=True):
    """Counters of all agents and sinks of a daemon, by name."""

    agents: dict[str, AgentCounters]
    sinks: dict[str, SinkCounters]
