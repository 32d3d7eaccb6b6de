"""Requests and answers in line protocol, their senders, and signatures."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccagent.controls.messages import (
    LineReader,
    encode_line,
    method_of_subject,
    nats_sender,
    read_lines,
)
from ccagent.controls.policy import RequestSender
from ccagent.errors import ControlError
from ccagent.net.signatures import SignatureCheck, sign
from ccagent.records.line_protocol import decode
from tests.support.control_machines import CPU, Site, allow, intel
from tests.support.nats_server import new_seed, public_key

if TYPE_CHECKING:
    from pathlib import Path

    from ccagent.records.line_protocol import Line

NOBODY = RequestSender("test")
TIME = "1795329333248607217"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    governors: dict[str, object] = {"values": ["performance", "powersave"]}
    return Site(intel(tmp_path), allow(cpu_freq__governor=governors))


def answers(site: Site, body: str) -> list[Line]:
    return [
        decode(encode_line(site.responder.answer(line, NOBODY)), "ns")
        for line in read_lines(body.encode())
        if site.responder.is_for_us(line)
    ]


@pytest.mark.parametrize(
    ("request_line", "text"),
    [
        ('cpu_freq.governor,hostname=n1,method=GET,type=hwthread,type-id=0 control="" ',
         "powersave"),
        ('cpu_freq.governor,hostname=n1,method=PUT,type=hwthread,type-id=0 control="performance" ',
         "Set cpu_freq.governor=performance for device hwthread/0: SUCCESS!"),
        ('governor,hostname=n1,method=GET,type=hwthread,type-id=0 control="" ', "powersave"),
        ('os.swappiness,hostname=n1,method=GET,type=node,type-id=0 control="" ', "60"),
        ('os.swappiness,hostname=n1,method=GET,type=node control="" ', "60"),
        ('rapl,hostname=n1,method=GET,type=socket,type-id=1 control="pkg_limit_1" ',
         "270.000000"),
        ('rapl,hostname=n1,method=GET,type=socket,type-id=1 control="intel.pkg.energy_status" ',
         "123.456789"),
        ('freq,hostname=n1,method=PUT,type=hwthread,type-id=2 control="governor=performance" ',
         "Set cpu_freq.governor=performance for device hwthread/2: SUCCESS!"),
        ('prefetcher,hostname=n1,method=GET,type=hwthread,type-id=2 control="l2_hwpf" ', "1"),
    ],
)  # fmt: skip
def test_recorded_requests_are_answered(site: Site, request_line: str, text: str) -> None:
    """What remoteclient sends, and the form of the specification."""
    (answer,) = answers(site, request_line + TIME)
    asked = decode(request_line + TIME, "ns")
    assert answer.measurement == asked.measurement
    assert answer.tags == asked.tags | {"level": "INFO"}
    assert (answer.field, answer.value) == ("log", text)


@pytest.mark.parametrize(
    ("request_line", "reason"),
    [
        ("os.swappiness,hostname=n1,method=GET,type=node value=1", "not a control message"),
        ('os.swappiness,hostname=n1,method=POST,type=node control=""', "not a control message"),
        ('os.swappiness,hostname=n1,type=node control=""', "not a control message"),
        ("os.swappiness,hostname=n1,method=GET,type=node control=1", "not a string"),
        ('os.swappiness,hostname=n1,method=GET control=""', "no tag type"),
        ('cpu_freq.governor,hostname=n1,method=GET,type=hwthread control=""', "no tag type-id"),
        ('rapl,hostname=n1,method=GET,type=socket,type-id=0 control="../x"', "names no control"),
    ],
)
def test_malformed_requests_are_errors(site: Site, request_line: str, reason: str) -> None:
    (answer,) = answers(site, f"{request_line} {TIME}")
    assert answer.tags["level"] == "ERROR"
    assert reason in str(answer.value)


@pytest.mark.parametrize(
    "body",
    [
        f'os.swappiness,hostname=n2,method=GET,type=node control="" {TIME}',
        'os.swappiness,hostname=n1,method=GET,type=node control=""',
        "no line at all",
        "",
        "\xff\xfe",
    ],
)
def test_other_hosts_lines_without_time_and_garbage_are_not_answered(site: Site, body: str) -> None:
    assert answers(site, body) == []


def test_each_line_of_a_message_is_answered_by_itself(site: Site) -> None:
    line = 'os.swappiness,hostname=n1,method=GET,type=node control="" ' + TIME
    other = line.replace("n1", "n2")
    wrong = line.replace("os.swappiness", "os.nothing")
    found = answers(site, f"{line}\n{other}\ngarbage\n{wrong}\n{line}")
    assert [answer.tags["level"] for answer in found] == ["INFO", "ERROR", "INFO"]


@pytest.mark.parametrize("what", ["topology", "controls"])
def test_topology_and_controls_are_answered_whatever_the_rest_is(site: Site, what: str) -> None:
    (answer,) = answers(site, f"{what},hostname=n1 value=1 {TIME}")
    assert answer.tags["level"] == "INFO"
    json.loads(str(answer.value))


def test_the_full_name_of_the_host_is_ours_too(site: Site) -> None:
    (answer,) = answers(site, f'controls,hostname=n1.fox,method=GET control="" {TIME}')
    assert answer.tags["hostname"] == "n1.fox"


def test_without_hostname_the_answer_names_the_node(site: Site) -> None:
    (answer,) = answers(site, f'os.swappiness,method=GET,type=node control="" {TIME}')
    assert answer.tags["hostname"] == "n1"


def test_subjects_of_the_tree_take_one_method(site: Site) -> None:
    assert [method_of_subject(s) for s in ("fox.control.get", "fox.control.put", "cc-control")] == [
        "GET", "PUT", "",
    ]  # fmt: skip
    assert "for GET only" in site.ask("governor", "performance", kind="hwthread", only="GET")[1]
    assert site.node.text(f"{CPU}/cpu0/cpufreq/scaling_governor") == "powersave"
    assert "for PUT only" in site.ask("governor", kind="hwthread", only="PUT")[1]


@given(text=st.text(max_size=200), method=st.sampled_from(["GET", "PUT", "x"]))
@settings(max_examples=100, deadline=None)
def test_no_text_of_a_request_makes_the_reader_raise(text: str, method: str) -> None:
    body = f'{text},hostname=n1,method={method} control="{text}" {TIME}\n{text}'
    assert isinstance(read_lines(body.encode("utf-8", "surrogatepass")), list)


def test_lines_that_come_again_are_read_alike() -> None:
    reader = LineReader()
    body = 'os.swappiness,hostname=n1,method=GET,type=node control="" '
    for time in ("1795329333248607217", "1795329333248607218", "5", "x", ""):
        for _ in range(2):
            assert reader.read((body + time).encode()) == read_lines((body + time).encode())
    two = f"{body}{TIME}\n{body}{TIME}".encode()
    assert len(reader.read(two)) == len(reader.read(two)) == 2


def test_senders_are_told_by_the_server_only_where_that_is_believed() -> None:
    headers = {"nats-request-info": '{"acc":"OPS","user":"ada","rtt":1}'}
    assert nats_sender("s", headers, "", trusts_info=False).identities == frozenset()
    trusted = nats_sender("s", headers, "", trusts_info=True)
    assert trusted.identities == {"account:OPS", "user:ada"}
    for damaged in ("x", '{"x":' + "[" * 100_000, "\udcff"):
        sender = nats_sender("s", {"nats-request-info": damaged}, "", trusts_info=True)
        assert sender.identities == set()


class TestSignatures:
    """Signed requests."""

    SEED = new_seed()
    NOW = 1_800_000_000.0

    def check(self, headers: dict[str, str], body: bytes = b"x", *, later: float = 1.0) -> str:
        lower = {name.lower(): value for name, value in headers.items()}
        return self.checker.signer("s", lower, body, self.NOW + later)

    @pytest.fixture(autouse=True)
    def _checker(self) -> None:
        self.checker = SignatureCheck(self.NOW - 10, [public_key(self.SEED)])

    def test_a_signature_names_its_key_once(self) -> None:
        headers = sign(self.SEED, "s", b"x", self.NOW)
        assert self.check(headers) == public_key(self.SEED)
        with pytest.raises(ControlError, match="used before"):
            self.check(headers)

    def test_an_unsigned_request_has_no_key(self) -> None:
        assert not self.check({})

    @pytest.mark.parametrize(
        ("subject", "body", "made", "reason"),
        [
            ("s", b"y", 0.0, "does not fit"),
            ("other", b"x", 0.0, "does not fit"),
            ("s", b"x", -100.0, "older than a minute"),
            ("s", b"x", 100.0, "clocks differ"),
            ("s", b"x", -20.0, "before this service started"),
        ],
    )
    def test_a_signature_for_something_else_does_not_count(
        self, subject: str, body: bytes, made: float, reason: str
    ) -> None:
        with pytest.raises(ControlError, match=reason):
            self.check(sign(self.SEED, subject, body, self.NOW + made))

    @pytest.mark.parametrize("name", ["Ccagent-Key", "Ccagent-Time", "Ccagent-Nonce"])
    def test_a_changed_header_does_not_count(self, name: str) -> None:
        headers = sign(self.SEED, "s", b"x", self.NOW)
        seed = new_seed()
        self.checker.keys |= {public_key(seed)}
        other = sign(seed, "s", b"x", self.NOW + 0.5)
        with pytest.raises(ControlError):
            self.check(headers | {name: other[name]})

    def test_a_strangers_key_takes_no_memory(self) -> None:
        headers = sign(new_seed(), "s", b"x", self.NOW)
        assert [self.check(headers), self.check(headers)] == ["", ""]
        assert self.check(sign(self.SEED, "s", b"x", self.NOW))

    @pytest.mark.parametrize("value", ["", "!", "A" * 88, "é"])
    def test_garbage_does_not_count(self, value: str) -> None:
        headers = sign(self.SEED, "s", b"x", self.NOW)
        for name in headers:
            with pytest.raises(ControlError):
                self.check(headers | {name: value})
