"""What messages over NATS cost the log, and whom they are counted for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from ccagent.stores.metrics.catalogue import MetricCatalogue, StoredMetric
from ccagent.stores.metrics.commit import GroupCommit
from ccagent.stores.metrics.ingest import LineIngest
from ccagent.stores.metrics.nats_receiver import NatsReceiver
from ccagent.stores.metrics.settings import StoreNatsSettings, SubscriptionSettings
from ccagent.stores.metrics.store import MetricStore
from tests.support.written_lines import written_lines

if TYPE_CHECKING:
    from nats.aio.msg import Msg

BAD = b"load,cluster=fox,hostname=n1,type=node value=x 1\n"


def test_bad_messages_write_one_line_and_are_counted() -> None:
    store = MetricStore(MetricCatalogue({"load": StoredMetric(60, "avg")}), lambda: 1000.0)
    one = SubscriptionSettings(subject="fox.>", cluster="fox")
    settings = StoreNatsSettings(url="nats://localhost", subscriptions=[one])
    ingest = LineIngest(store)
    receiver = NatsReceiver(settings, ingest, GroupCommit(None, "write"))

    async def take(subject: str, data: bytes) -> None:
        await receiver._take(one, cast("Msg", SimpleNamespace(subject=subject, data=data)))

    async def take_all() -> None:
        for number in range(3000):
            await take(f"fox.{number}{'x' * 300}", BAD * (1 + number % 7))
        for _ in range(3000):
            await take("fox.dear", BAD)

    with written_lines() as lines:
        asyncio.run(take_all())
    (line,) = lines
    assert len(line) < 400
    dearest, *others = ingest.senders.dearest()
    assert dearest == {
        "sender": "nats fox.dear", "messages": 3000, "bytes": 3000 * len(BAD),
        "refused_lines": 3000,
    }  # fmt: skip
    assert len(others) == 10
    assert others[-1]["sender"] == "others"
    assert others[-1]["messages"] >= 2000
