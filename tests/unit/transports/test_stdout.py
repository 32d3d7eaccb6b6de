"""`stdout:`: what is printed, and what happens to a reader that is slow or gone."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from ccagent.errors import ConfigurationError, RejectedError, RetryableError
from ccagent.records.message import Format, Message
from ccagent.transports.base import SinkSettings
from ccagent.transports.stdout import StdoutTransport, has_reader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ENVELOPE = b'{"meta":{"producer":"ccagent"},"data":{"n":[1,2]}}'
POINTS = b'load,hostname=n\xc3\xb6de value=1 1700000000\nmem,a="b" value=2 1700000000\n'


def message(
    body: bytes = ENVELOPE, form: Format = "sonar", kind: str = "sample", prefix: str = ""
) -> Message:
    return Message("fox", "c1-1", kind, form, 1_700_000_000.0, body, prefix)


class Pipe:
    """Standard output as a pipe or terminal whose other end the test holds."""

    def __init__(self, ends: tuple[int, int]) -> None:
        self.reader, self.writer = ends
        self._open = {self.reader}
        self._file = os.fdopen(self.writer, "w")

    def send(self, url: str, *messages: Message, is_one_shot: bool = False) -> None:
        sink = StdoutTransport(SinkSettings(url=url))
        sink.is_one_shot = is_one_shot
        with contextlib.redirect_stdout(self._file):
            sink.send(messages)

    def has_reader(self) -> bool:
        with contextlib.redirect_stdout(self._file):
            return has_reader()

    def read(self) -> bytes:
        return os.read(self.reader, 65536).replace(b"\r\n", b"\n")

    def close_reader(self) -> None:
        if self._open:
            os.close(self._open.pop())

    def close(self) -> None:
        self.close_reader()
        self._file.close()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe(os.pipe())
    yield made
    made.close()


@pytest.fixture
def terminal() -> Iterator[Pipe]:
    made = Pipe(pty.openpty())
    yield made
    made.close()


def test_raw_envelopes_stand_one_a_line(pipe: Pipe) -> None:
    pipe.send("stdout:", message(), message(b"{}"))
    assert pipe.read() == ENVELOPE + b"\n{}\n"


def test_wrapped_envelopes_name_topic_key_and_client(pipe: Pipe) -> None:
    pipe.send("stdout:wrapped", message(), message(b"{}", kind="job", prefix="test"))
    assert pipe.read() == (
        b'{"topic":"fox.sample","key":"c1-1","client":"fox/c1-1","value":' + ENVELOPE + b"}\n"
        b'{"topic":"test.fox.job","key":"c1-1","client":"fox/c1-1","value":{}}\n'
    )


def test_raw_points_are_printed_as_they_are(pipe: Pipe) -> None:
    pipe.send("stdout:", message(POINTS, "line", "metrics"))
    assert pipe.read() == POINTS


def test_wrapped_points_are_a_string(pipe: Pipe) -> None:
    pipe.send("stdout:wrapped", message(POINTS, "line", "metrics"))
    assert json.loads(pipe.read()) == {
        "topic": "fox.metrics",
        "key": "c1-1",
        "client": "fox/c1-1",
        "value": POINTS.decode(),
    }


def test_a_terminal_gets_raw_envelopes_indented(terminal: Pipe) -> None:
    terminal.send("stdout:", message(b'{"a":{"b":1}}'))
    assert terminal.read() == (b'{\n  "a": {\n    "b": 1\n  }\n}\n')


def test_a_terminal_gets_wrapped_envelopes_and_points_as_anybody(terminal: Pipe) -> None:
    terminal.send("stdout:wrapped", message(b"{}"))
    assert terminal.read() == (
        b'{"topic":"fox.sample","key":"c1-1","client":"fox/c1-1","value":{}}\n'
    )
    terminal.send("stdout:", message(b"load value=1 1700000000\n", "line", "metrics"))
    assert terminal.read() == b"load value=1 1700000000\n"


def test_a_reader_that_has_gone_ends_a_one_shot(pipe: Pipe) -> None:
    pipe.close_reader()
    with pytest.raises(BrokenPipeError):
        pipe.send("stdout:", message(), is_one_shot=True)


def test_the_daemon_sees_that_the_reader_has_gone(pipe: Pipe) -> None:
    assert pipe.has_reader()
    pipe.close_reader()
    pipe.send("stdout:", message())
    assert not pipe.has_reader()


def test_a_file_and_a_closed_output_lose_no_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "out").open("w") as file, contextlib.redirect_stdout(file):
        assert has_reader()
    monkeypatch.setattr(sys, "stdout", None)
    assert has_reader()


@pytest.mark.parametrize("blocking", [True, False])
def test_a_slow_reader_gets_everything(pipe: Pipe, blocking: bool) -> None:
    body = b'"' + bytes(range(97, 123)) * 40_000 + b'"'
    got = bytearray()

    def read() -> None:
        while not got.endswith(b"\n"):
            got.extend(os.read(pipe.reader, 10_000))

    os.set_blocking(pipe.writer, blocking)
    reader = threading.Thread(target=read)
    reader.start()
    pipe.send("stdout:", message(body))
    reader.join()
    assert bytes(got) == body + b"\n"


def test_a_full_disk_may_be_emptied() -> None:
    sink = StdoutTransport(SinkSettings(url="stdout:"))
    with (
        open("/dev/full", "w") as full,
        contextlib.redirect_stdout(full),
        pytest.raises(RetryableError, match="No space left"),
    ):
        sink.send([message()])


def test_without_a_standard_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(RejectedError, match="closed"):
        StdoutTransport(SinkSettings(url="stdout:")).send([message()])


@pytest.mark.parametrize("url", ["stdout:pretty", "stdout://", "stdout:wrapped "])
def test_other_forms_are_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="'stdout:' and 'stdout:wrapped'"):
        StdoutTransport(SinkSettings(url=url))
