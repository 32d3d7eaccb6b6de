"""`kafka://` against the mock brokers that librdkafka brings with it."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, cast

import pytest
from confluent_kafka import KafkaError

from ccagent.errors import RejectedError, RetryableError, TooLargeError
from ccagent.net.urls import Server
from ccagent.transports.kafka_connection import KafkaConnection, KafkaSettings
from tests.support.kafka_cluster import (
    INIT_PRODUCER_ID,
    PRODUCE,
    Cluster,
    Connections,
    bodies,
    message,
    messages,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.transports.kafka import KafkaTransport


@pytest.fixture(scope="module")
def transport(shared_cluster: Cluster) -> Iterator[KafkaTransport]:
    """Share a producer: the library needs half a second to begin."""
    made = Connections()
    yield made(f"kafka://{shared_cluster.place}")
    made.close()


def test_what_the_other_side_said(cluster: Cluster, transport: KafkaTransport) -> None:
    transport.send(messages(2))
    found = cluster.stored()
    assert transport.answer == f"topic fox.sample, partition 0, offset {found[1].offset()}"


def test_messages_arrive_in_order_with_key_header_and_time(
    cluster: Cluster, transport: KafkaTransport
) -> None:
    transport.send(messages(300))
    transport.send([message(300)])
    found = cluster.stored()
    assert [each.value() for each in found] == bodies(messages(301))
    assert {each.key() for each in found} == {b"c1-1"}
    assert {each.timestamp()[1] for each in found} == {1_700_000_000_250}
    assert [each.headers() for each in found[:2]] == [[("id", b"id-0")], [("id", b"id-1")]]


def test_more_messages_than_the_librarys_queue_takes(
    cluster: Cluster, transport: KafkaTransport
) -> None:
    transport.send(messages(100_500))
    assert cluster.count() == 100_500


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_the_size_is_limited_by_the_broker_alone(
    cluster: Cluster, connect: Connections, compression: str
) -> None:
    large = message(body=os.urandom(1_500_000))
    connect(f"kafka://{cluster.place}", compression=compression).send([large, message(1)])
    assert cluster.bodies() == [large.body, message(1).body]


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4"])
def test_the_library_knows_the_other_compressions(compression: str) -> None:
    settings = KafkaSettings(url="kafka://h", compression=cast("Any", compression))
    KafkaConnection(settings, [Server("127.0.0.1", 1)], "fox").close()


def test_a_message_that_the_library_refuses(cluster: Cluster, transport: KafkaTransport) -> None:
    huge = message(1, body=bytes(64 * 1024 * 1024))
    with pytest.raises(TooLargeError, match="of 67108864 bytes is more than") as caught:
        transport.send([message(0), huge, message(2)])
    assert caught.value.delivered == 1
    assert transport.largest_body is not None
    assert transport.largest_body < len(huge.body)
    assert cluster.bodies() == [message(0).body]


def test_a_topic_by_template(cluster: Cluster, connect: Connections) -> None:
    connect(f"kafka://{cluster.place}", topic="{cluster}.sysinfo").send([message()])
    assert cluster.bodies("fox.sysinfo") == [message().body]


def test_a_name_that_cant_be_a_topic_is_refused_alone(
    cluster: Cluster, transport: KafkaTransport
) -> None:
    with pytest.raises(RejectedError, match="'fox.no topic' is not a topic") as caught:
        transport.send([message(0), message(1, "no topic"), message(2)])
    assert caught.value.delivered == 1
    assert cluster.bodies() == [message(0).body]


def test_passing_errors_are_overcome(cluster: Cluster, transport: KafkaTransport) -> None:
    transport.send([message(0)])
    hangs_up = KafkaError._TRANSPORT
    for number, code in enumerate(
        [
            KafkaError.NOT_LEADER_FOR_PARTITION,
            KafkaError.REQUEST_TIMED_OUT,
            KafkaError.NOT_ENOUGH_REPLICAS,
            hangs_up,
        ],
        start=1,
    ):
        cluster.fail(PRODUCE, code)
        transport.send([message(number)])
    assert cluster.bodies() == bodies(messages(5))


def test_a_connection_that_was_lost_meanwhile_is_made_again(
    cluster: Cluster, transport: KafkaTransport
) -> None:
    transport.send([message(0)])
    cluster.down()
    time.sleep(0.3)
    cluster.up()
    transport.send([message(1)])
    assert cluster.bodies() == bodies(messages(2))


def test_of_a_batch_only_the_message_that_is_too_large_is_refused(
    cluster: Cluster, transport: KafkaTransport
) -> None:
    too_large = KafkaError.MSG_SIZE_TOO_LARGE
    cluster.fail(PRODUCE, too_large, 0, too_large)
    with pytest.raises(TooLargeError, match=r"of 7 bytes is more than .* 'fox.sample'") as caught:
        transport.send(messages(3))
    assert caught.value.delivered == 1
    transport.send([message(2)])
    assert cluster.bodies() == [message(0).body, message(2).body]


def test_a_batch_that_is_too_large_goes_in_pieces(
    cluster: Cluster, transport: KafkaTransport
) -> None:
    cluster.fail(PRODUCE, KafkaError.MSG_SIZE_TOO_LARGE)
    transport.send(messages(3))
    assert cluster.bodies() == bodies(messages(3))


def test_a_time_that_the_topic_doesnt_take(cluster: Cluster, transport: KafkaTransport) -> None:
    cluster.fail(PRODUCE, KafkaError.INVALID_TIMESTAMP)
    with pytest.raises(RetryableError, match="check the clocks") as caught:
        transport.send([message()])
    assert caught.value.is_about_message


def test_a_topic_that_isnt_there_may_come(cluster: Cluster, connect: Connections) -> None:
    transport = connect(f"kafka://{cluster.place}", limit="2s")
    cluster.spoil("fox.sysinfo", KafkaError.UNKNOWN_TOPIC_OR_PART)
    mixed = [message(0), message(1, "sysinfo"), message(2)]
    with pytest.raises(RetryableError, match=r"there is no topic 'fox\.sysinfo'") as caught:
        transport.send(mixed)
    assert caught.value.delivered == 1
    assert caught.value.is_about_message
    cluster.spoil("fox.sysinfo", 0)
    transport.send(mixed[1:])
    assert cluster.bodies("fox.sysinfo") == [message(1).body]


@pytest.mark.parametrize(
    ("request_", "code", "reason"),
    [
        (
            PRODUCE,
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            "client without a login may not write to",
        ),
        (PRODUCE, KafkaError.POLICY_VIOLATION, r"\(POLICY_VIOLATION\)"),
        (PRODUCE, KafkaError.INVALID_REQUIRED_ACKS, r"'fox.sample': .*\(INVALID_REQUIRED_ACKS\)"),
        (INIT_PRODUCER_ID, KafkaError.CLUSTER_AUTHORIZATION_FAILED, "IdempotentWrite"),
        (PRODUCE, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "desynchronization"),
    ],
)
def test_what_fails_for_good_works_with_a_new_producer(
    cluster: Cluster, transport: KafkaTransport, request_: int, code: int, reason: str
) -> None:
    if request_ == INIT_PRODUCER_ID:
        transport.close()
    cluster.fail(request_, code)
    with pytest.raises(RetryableError, match=reason) as caught:
        transport.send(messages(2))
    assert caught.value.delivered == 0
    of_topic = {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.POLICY_VIOLATION}
    assert caught.value.is_about_message is (code in of_topic)
    transport.send(messages(2))
    # On a loaded machine the second message may have been in a request of its own, and come twice.
    assert cluster.bodies()[-2:] == bodies(messages(2))


def test_what_was_refused_is_not_sent_behind_the_callers_back(
    cluster: Cluster, transport: KafkaTransport
) -> None:
    transport.send([message(0)])
    cluster.down()
    begin = time.monotonic()
    with pytest.raises(RetryableError, match=f"^kafka://{cluster.place}: .*refused") as caught:
        transport.send([message(1), message(2)])
    assert time.monotonic() - begin < 60
    assert caught.value.delivered == 0
    cluster.up()
    assert cluster.bodies() == [message(0).body]
    transport.send([message(1), message(2)])
    assert cluster.bodies() == bodies(messages(3))


def test_a_server_that_never_answers(connect: Connections) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        transport = connect(f"kafka://127.0.0.1:{silent.getsockname()[1]}", limit="500ms")
        begin = time.monotonic()
        with pytest.raises(RetryableError, match="no acknowledgement within 500ms$"):
            transport.send([message()])
        transport.close()
        assert time.monotonic() - begin < 60


def test_a_server_that_hangs_up(connect: Connections) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def hang_up() -> None:
            with contextlib.suppress(OSError):
                while True:
                    listening.accept()[0].close()

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        place = f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(
            RetryableError, match=f"{place}: Disconnected.*(kafkas://|SSL listener)"
        ):
            connect(f"kafka://{place}", limit="700ms").send([message()])
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_name_that_doesnt_resolve(connect: Connections) -> None:
    reason = r"^kafka://nowhere\.invalid:9092: .*Failed to resolve 'nowhere\.invalid:9092': "
    with pytest.raises(RetryableError, match=reason):
        connect("kafka://nowhere.invalid", limit="700ms").send([message()])


def test_one_of_several_brokers_is_enough(cluster: Cluster, connect: Connections) -> None:
    connect(f"kafka://nowhere.invalid,127.0.0.1:1,{cluster.place}").send([message()])
    assert cluster.bodies() == [message().body]


def test_close_leaves_nothing_behind(cluster: Cluster, connect: Connections) -> None:
    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

    def settled() -> tuple[int, int]:
        now, before = held(), (0, 0)
        while now != before:
            time.sleep(0.2)  # the mock lets go of its ends a moment later
            now, before = held(), now
        return now

    before = settled()
    for url, limit in ((f"kafka://{cluster.place}", "10s"), ("kafka://127.0.0.1:1", "300ms")):
        transport = connect(url, limit=limit)
        with contextlib.suppress(RetryableError):
            transport.send([message()])
        begin = time.monotonic()
        transport.close()
        transport.close()
        assert time.monotonic() - begin < 60
    assert settled() == before


def test_a_closed_transport_connects_again(cluster: Cluster, transport: KafkaTransport) -> None:
    transport.send([message(0)])
    transport.close()
    transport.send([message(1)])
    assert cluster.bodies() == bodies(messages(2))


def test_the_librarys_log_is_for_those_who_ask_for_details(
    connect: Connections, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "ccagent")
    with pytest.raises(RetryableError, match="Connection refused"):
        connect("kafka://127.0.0.1:1", limit="300ms").send([message()])
    assert capfd.readouterr() == ("", "")
    assert {(r.name, r.levelno) for r in caplog.records} == {("ccagent.kafka", logging.DEBUG)}
