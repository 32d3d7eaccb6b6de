"""What senders without permission cost those who have it."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from ccagent.controls.journal import read_audit
from ccagent.controls.local_socket import BoundedCalls
from ccagent.controls.messages import Incoming, LineReader, nats_sender
from ccagent.controls.nats_requests import NatsRequests
from ccagent.controls.policy import RequestSender, SenderLimits
from ccagent.controls.settings import ControlsSettings
from ccagent.errors import ControlError
from ccagent.net import signatures
from ccagent.net.signatures import SignatureCheck, sign
from ccagent.records.line_protocol import Line
from ccagent.senders import SenderTable
from tests.support.control_machines import MachineNode, Site, add_os, allow, check_table
from tests.support.nats_server import new_seed, public_key
from tests.support.written_lines import written_lines

if TYPE_CHECKING:
    from pathlib import Path

SEED, OTHER_SEED = new_seed(), new_seed()
KEY, OTHER_KEY = f"key:{public_key(SEED)}", f"key:{public_key(OTHER_SEED)}"
SIGNED = RequestSender("key", frozenset({KEY}))
SUBJECT = "cc-control"
UNSIGNED = nats_sender(SUBJECT, {}, "", trusts_info=False)
PUT = b'os.swappiness,hostname=n1,method=PUT,type=node,type-id=0 control="40" 1700000000000000000'


@pytest.fixture
def site(tmp_path: Path) -> Site:
    node = MachineNode(tmp_path)
    add_os(node)
    rule: dict[str, object] = {"min": 0, "max": 200, "from": [KEY, OTHER_KEY]}
    return Site(node, allow(os__swappiness=rule))


def test_unsigned_puts_stop_no_signed_one(site: Site) -> None:
    for _ in range(1000):
        assert site.ask("os.swappiness", "30", sender=UNSIGNED)[0] == "ERROR"
    assert site.ask("os.swappiness", "30", sender=SIGNED)[0] == "INFO"


def test_a_permitted_sender_spends_its_own_limit_only(site: Site) -> None:
    answers = [site.ask("os.swappiness", "30", sender=SIGNED) for _ in range(601)]
    assert [level for level, _ in answers] == ["INFO"] * 600 + ["ERROR"]
    assert "more than 600 PUT requests within a minute" in answers[-1][1]
    other = RequestSender("other", frozenset({OTHER_KEY}))
    assert site.ask("os.swappiness", "30", sender=other)[0] == "INFO"
    root = RequestSender("root", is_root=True)
    assert site.ask("os.swappiness", "30", sender=root)[0] == "INFO"


def test_senders_outside_the_policy_share_a_tenth(site: Site) -> None:
    limits = SenderLimits(site.settings, 600)
    strangers = [RequestSender("x", frozenset({f"user:{n}"})) for n in range(100)]
    assert {limits.find(each) for each in strangers} == {limits.find(UNSIGNED)}
    assert limits.find(UNSIGNED).most == 60


def test_without_senders_in_the_policy_all_share_the_limit() -> None:
    for table in (ControlsSettings(allow={}), ControlsSettings(senders=(KEY,))):
        assert SenderLimits(table, 600).find(UNSIGNED).most == 60
    settings = check_table(allow(os__swappiness={"values": ["1"]}))
    assert SenderLimits(settings, 600).find(UNSIGNED).most == 600


def test_refusals_of_strangers_leave_room_in_audit_and_log(site: Site) -> None:
    with written_lines() as lines:
        for number in range(500):
            site.ask("os.swappiness", str(number), sender=UNSIGNED)
        site.ask("os.swappiness", "300", sender=SIGNED)
    assert len(lines) == 3, lines
    refused = read_audit(str(site.state), 0)
    assert [entry.by for entry in refused] == [UNSIGNED.name] * 6 + ["key"]


def test_status_has_the_dearest_senders(site: Site) -> None:
    for _ in range(70):
        site.ask("os.swappiness", "30", sender=UNSIGNED)
    site.ask("os.swappiness", "30", sender=SIGNED)
    level, text = site.ask("status")
    assert level == "INFO"
    assert json.loads(text)["senders"] == [
        {"sender": f"NATS subject {SUBJECT}", "puts": 70, "refused": 70, "log_lines": 6},
        {"sender": "key", "puts": 1, "log_lines": 1},
    ]


def test_requests_that_are_refused_at_once_start_no_thread(site: Site) -> None:
    """A thread costs more than a refusal, so strangers must not start any number."""
    put = Line("os.swappiness", {"method": "PUT", "type": "node"}, "control", "30", 1)
    answer = site.responder
    assert not answer.is_quick(put, UNSIGNED, "")
    assert answer.is_quick(put, UNSIGNED, "GET")
    for _ in range(60):
        answer.answer(put, UNSIGNED)
    assert answer.is_quick(put, UNSIGNED, "")
    assert not answer.is_quick(put, SIGNED, "")


def test_the_table_of_senders_is_bounded() -> None:
    table = SenderTable(most=100)
    for number in range(10_000):
        table.count(f"stranger {number}", puts=1)
        table.count("dear", puts=1)
    first, *others = table.dearest()
    assert first == {"sender": "dear", "puts": 10_000}
    assert len(others) == 10
    assert others[-1]["puts"] > 9000


class _Forger:
    """A receiver whose parsed messages and checked signatures are counted."""

    def __init__(self, site: Site, patch: pytest.MonkeyPatch) -> None:
        check = SignatureCheck(0.0, [KEY.removeprefix("key:")])
        self.receiver = NatsRequests(site.settings, site.responder, check, BoundedCalls())
        self.parsed = self.checked = 0
        read, is_valid = LineReader.read, signatures._is_valid

        def count_read(reader: LineReader, body: bytes) -> list[Line]:
            self.parsed += 1
            return read(reader, body)

        def count_valid(key: str, signature: str, text: bytes) -> bool:
            self.checked += 1
            return is_valid(key, signature, text)

        patch.setattr(LineReader, "read", count_read)
        patch.setattr(signatures, "_is_valid", count_valid)

    def send(self, headers: dict[str, str], body: bytes = PUT) -> list[Incoming]:
        lower = {name.lower(): value for name, value in headers.items()}
        return self.receiver.take(SUBJECT, "_INBOX.1", lower, body)


@pytest.fixture
def forger(site: Site, monkeypatch: pytest.MonkeyPatch) -> _Forger:
    return _Forger(site, monkeypatch)


def test_forged_requests_are_refused_before_they_are_parsed(forger: _Forger) -> None:
    forged = sign(OTHER_SEED, SUBJECT, PUT, time.time()) | {
        signatures.KEY: KEY.removeprefix("key:")
    }
    with written_lines() as lines:
        taken = [forger.send(forged, b"\n".join([PUT] * 50)) for _ in range(1000)]
    assert sum(map(len, taken)) == 60
    assert forger.parsed == 2
    assert len(lines) == 1
    (request,) = forger.send(sign(SEED, SUBJECT, PUT, time.time()))
    assert not request.refusal
    assert request.sender.identities == {KEY}


def test_a_repeated_request_costs_no_check_of_its_signature(forger: _Forger) -> None:
    headers = sign(SEED, SUBJECT, PUT, time.time())
    for _ in range(10):
        forger.send(headers)
    assert forger.checked == 1


def test_a_key_that_signs_too_much_stops_no_other_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signatures, "_REMEMBERED", 8)
    check = SignatureCheck(0.0, [KEY.removeprefix("key:"), OTHER_KEY.removeprefix("key:")])
    now = time.time()

    def ask(seed: str) -> str:
        headers = {k.lower(): v for k, v in sign(seed, SUBJECT, PUT, now).items()}
        return check.signer(SUBJECT, headers, PUT, now)

    for _ in range(4):
        ask(SEED)
    with pytest.raises(ControlError, match="of this key"):
        ask(SEED)
    assert ask(OTHER_SEED) == OTHER_KEY.removeprefix("key:")
