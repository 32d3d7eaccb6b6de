"""Messages above a real server's limit: refused whole, stored once in parts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from ccagent.errors import RejectedError
from ccagent.records.splitting import split_message
from tests.support.nats_server import Bench
from tests.support.schema import validate
from tests.unit.records.test_splitting import job, message_of, sample

if TYPE_CHECKING:
    pass

LARGEST = 2**20 - 256
"""What a server takes by default, less the headers of a message."""


def test_a_user_with_6500_hostile_names_cannot_hide_a_node(bench: Bench) -> None:
    message = message_of(sample([job(1000 + n, ["\x01" * 15] * 10) for n in range(650)]))
    server = bench.stream_server()
    transport = bench.connect(server.url, jetstream=True)
    with pytest.raises(RejectedError, match="bytes are more than the server takes"):
        transport.send([message])
    transport.send(split_message(message, LARGEST))
    # The acknowledgement got lost: the parts are the same, and the server knows them.
    transport.send(split_message(message, LARGEST))
    stored = server.stored()
    assert [headers["Nats-Msg-Id"] for _, _, headers in stored] == ["ab12-1", "ab12-2"]
    pids: list[int] = []
    for _, body, _ in stored:
        envelope = validate("SampleEnvelope", body)
        for each in envelope["data"]["attributes"]["jobs"]:
            pids += [process["pid"] for process in each["processes"]]
    whole = json.loads(message.body)["data"]["attributes"]["jobs"]
    assert pids == [process["pid"] for each in whole for process in each["processes"]]
    assert len(pids) == 6500
