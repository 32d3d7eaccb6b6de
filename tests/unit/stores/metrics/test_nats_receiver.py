"""What messages over NATS cost the log, and whom they are counted for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from ccagent.errors import ConfigurationError
from ccagent.net.nats_login import NatsLogin, name_server, split_nats_servers
from ccagent.stores.metrics.commit import GroupCommit
from ccagent.stores.metrics.ingest import LineIngest
from ccagent.stores.metrics.line_keys import MetricCatalogue, StoredMetric
from ccagent.stores.metrics.nats_receiver import NatsReceiver, read_client
from ccagent.stores.metrics.settings import StoreNatsSettings, SubscriptionSettings
from ccagent.stores.metrics.store import MetricStore
from tests.support.written_lines import written_lines

if TYPE_CHECKING:
    from pathlib import Path

    from nats.aio.msg import Msg

BAD = b"load,cluster=fox,hostname=n1,type=node value=x 1\n"


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("url", "servers"),
    [
        ("nats://a:4000, nats://b", ["nats://a:4000", "nats://b:4222"]),
        ("0.0.0.0:4222", ["nats://0.0.0.0:4222"]),
        ("tls://[::1]", ["tls://[::1]:4222"]),
    ],
)
def test_urls_may_have_blanks_or_no_scheme(url: str, servers: list[str]) -> None:
    client, options = read_client(StoreNatsSettings(url=url))
    assert [name_server(client, one) for one in split_nats_servers(client)] == servers
    assert (options.context is not None) == url.startswith("tls")


def test_a_login_in_the_url_is_refused_and_not_told() -> None:
    with pytest.raises(ConfigurationError, match="set user and password-file") as found:
        read_client(StoreNatsSettings(url="nats://eve:secret@h"))
    assert "secret" not in str(found.value)


def test_a_file_with_a_secret_precedes_a_password(tmp_path: Path) -> None:
    settings = StoreNatsSettings(url="nats://h", user="eve", password="plain")
    assert read_client(settings)[1].login == NatsLogin(user="eve", password="plain")
    (tmp_path / "secret").write_text("filed\n")
    (tmp_path / "secret").chmod(0o600)
    filed = StoreNatsSettings(
        url="nats://h", user="eve", password="plain", password_file=str(tmp_path / "secret")
    )
    assert read_client(filed)[1].login == NatsLogin(user="eve", password="filed")
