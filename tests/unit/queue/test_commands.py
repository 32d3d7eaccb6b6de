"""The commands of `ccagent outbox`, on queues with many dead letters."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccagent.config.configuration import Configuration, check
from ccagent.queue import segment
from ccagent.queue.commands import DeadLetterSelection, list_queues, retry
from ccagent.queue.queue import Queue
from ccagent.records.message import Message

LETTERS = 400


def used_bytes(queue: Queue) -> int:
    return sum(each.file.size for each in queue._segments.values())


@pytest.fixture
def configuration(tmp_path: Path) -> Configuration:
    """A full queue with many dead letters, in several files, and some messages."""
    found = check(
        {
            "outbox": {"directory": str(tmp_path / "outbox"), "max-bytes": 300_000},
            "sinks": {"backend": {"url": "http://127.0.0.1:1"}},
        },
        "test",
    )
    queue = Queue("backend", found.outbox)
    body = b'"' + b"x" * 1000 + b'"'
    message = Message("c", "n", "sample", "sonar", 1.0, body, "", "id")
    queue.put([message] * LETTERS)
    while batch := queue.next_batch():
        for waiting in batch:
            queue.reject(waiting.number, "refused")
    while used_bytes(queue) + 2 * len(body) < found.outbox.max_bytes:
        queue.put([message])
    queue.close()
    return found


def test_dead_letters_that_make_room_for_others_are_queued_again_too(
    configuration: Configuration,
) -> None:
    (before,) = list_queues(configuration)
    assert retry(configuration, DeadLetterSelection()) == before.dead_letters
    (after,) = list_queues(configuration)
    assert after.messages == before.messages + before.dead_letters


def test_the_time_for_dead_letters_grows_with_their_number_only(
    configuration: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse, parsed = segment.parse_segment, list[int]()

    def count(content: bytes, owner: segment.QueueOwner) -> segment.SegmentContent:
        parsed.append(len(content))
        return parse(content, owner)

    monkeypatch.setattr(segment, "parse_segment", count)
    retry(configuration, DeadLetterSelection())
    assert sum(parsed) < 10 * configuration.outbox.max_bytes
