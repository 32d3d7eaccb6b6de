"""`dir:PATH`: what stands where, and that lines stay whole whatever happens."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

import pytest

from ccagent.config.files import convert
from ccagent.errors import ConfigurationError, RetryableError
from ccagent.records.message import Format, Message
from ccagent.transports.directory import DirectorySettings, DirectoryTransport

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

LAST_SECOND_OF_JANUARY = 1_769_903_999.0


def message(
    body: bytes = b'{"a":1}',
    kind: str = "sample",
    form: Format = "sonar",
    at: float = LAST_SECOND_OF_JANUARY,
) -> Message:
    return Message("fox", "c1-1.fox", kind, form, at, body)


def transport(path: Path | str, *, fsync: bool = False) -> DirectoryTransport:
    return DirectoryTransport(DirectorySettings(url=f"dir:{path}", fsync=fsync))


def files(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()
    }


@pytest.mark.parametrize(
    ("kind", "form", "name"),
    [
        ("sample", "sonar", "0+sample-c1-1.fox.json"),
        ("sysinfo", "sonar", "0+sysinfo-c1-1.fox.json"),
        ("job", "sonar", "0+job-slurm.json"),
        ("cluster", "sonar", "0+cluzter-slurm.json"),
        ("metrics", "line", "metrics-c1-1.fox.line"),
    ],
)
def test_each_kind_has_its_file(tmp_path: Path, kind: str, form: Format, name: str) -> None:
    transport(tmp_path).send([message(b"text\n", kind, form)])
    assert files(tmp_path) == {f"2026/01/31/{name}": b"text\n"}


def test_envelopes_stand_one_a_line(tmp_path: Path) -> None:
    transport(tmp_path).send([message(b'{"n":1}'), message(b'{"n":2}')])
    transport(tmp_path).send([message(b'{"n":3}')])
    assert files(tmp_path) == {"2026/01/31/0+sample-c1-1.fox.json": b'{"n":1}\n{"n":2}\n{"n":3}\n'}


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Auckland", "America/Los_Angeles"])
def test_the_day_ends_at_midnight_utc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        transport(tmp_path).send([message(b"{}"), message(b"{}", at=LAST_SECOND_OF_JANUARY + 1)])
    time.tzset()
    assert sorted(files(tmp_path)) == [
        "2026/01/31/0+sample-c1-1.fox.json",
        "2026/02/01/0+sample-c1-1.fox.json",
    ]


@pytest.mark.parametrize("url", ["dir:", "dir:data", "dir:./data", "dir://host/data"])
def test_a_path_must_be_absolute(url: str) -> None:
    with pytest.raises(ConfigurationError, match="absolute"):
        DirectoryTransport(DirectorySettings(url=url))


@pytest.mark.parametrize("slashes", ["", "//"])
def test_both_spellings_of_the_url(tmp_path: Path, slashes: str) -> None:
    DirectoryTransport(DirectorySettings(url=f"dir:{slashes}{tmp_path}")).send([message()])
    assert len(files(tmp_path)) == 1


WRITER = """
import random, sys
from ccagent.records.message import Message
from ccagent.transports.directory import DirectorySettings, DirectoryTransport

directory, writer = sys.argv[1:]
sizes = random.Random(writer)
sink = DirectoryTransport(DirectorySettings(url="dir:" + directory))
print(flush=True)
sys.stdin.read(1)
for number in range(250):
    fill = "x" * sizes.choice([0, 300, 4096, 20_000, 65_536, 200_000])
    body = f'{{"writer":{writer},"number":{number},"size":{len(fill)},"fill":"{fill}"}}'
    sink.send([Message("fox", "c1-1", "sample", "sonar", 1.7e9, body.encode())])
"""


@pytest.mark.slow
def test_lines_of_several_processes_stay_whole(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        for number in range(4)
    ]
    # All are ready before the first begins, so that they write at the same time.
    for writer in writers:
        assert writer.stdout is not None
        with writer.stdout:
            assert writer.stdout.readline() == b"\n"
    for writer in writers:
        assert writer.stdin is not None
        with writer.stdin:
            writer.stdin.write(b"!")
    assert [writer.wait(20) for writer in writers] == [0, 0, 0, 0]

    (content,) = files(tmp_path).values()
    assert content.endswith(b"\n")
    seen: dict[int, list[int]] = {number: [] for number in range(4)}
    order: list[int] = []
    for line in content.splitlines():
        entry = json.loads(line)
        assert entry["fill"] == "x" * entry["size"]
        seen[entry["writer"]].append(entry["number"])
        order.append(entry["writer"])
    assert seen == {number: list(range(250)) for number in range(4)}
    assert order != sorted(order, key=order.index), "one after the other: this showed nothing"


def test_a_line_that_was_cut_off_spoils_no_other(tmp_path: Path) -> None:
    file = tmp_path / "2026/01/31/0+sample-c1-1.fox.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(b'{"n":1}\n{"n":')
    transport(tmp_path).send([message(b'{"n":3}'), message(b'{"n":4}')])
    assert file.read_bytes() == b'{"n":1}\n{"n":3}\n{"n":4}\n'


def test_a_line_that_only_lacks_its_end_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "2026/01/31/0+sample-c1-1.fox.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(b'{"n":1}')
    transport(tmp_path).send([message(b'{"n":3}')])
    assert file.read_bytes() == b'{"n":1}\n{"n":3}\n'


def test_a_reader_that_locks_the_file_stalls_nobody(tmp_path: Path) -> None:
    sink = transport(tmp_path)
    sink.send([message(b'{"n":1}')])
    file = tmp_path / "2026/01/31/0+sample-c1-1.fox.json"
    with file.open("rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_EX)
        begin = time.monotonic()
        sink.send([message(b'{"n":2}')])
    assert time.monotonic() - begin < 5
    assert file.read_bytes().count(b"\n") == 2


@contextlib.contextmanager
def unprivileged() -> Generator[None]:
    """Root may write anywhere, so be somebody else."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_written_to(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    transport(tmp_path).send([message(), message()])
    assert [*files(tmp_path).values()] == [b'{"a":1}\n{"a":1}\n']
    assert "only one process may write this file" in caplog.text


def test_a_directory_that_cant_be_written_may_be_mended() -> None:
    # Not below tmp_path, which nobody but its owner may enter.
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o500)
        sink = transport(directory)
        with unprivileged(), pytest.raises(RetryableError, match="Permission denied") as caught:
            sink.send([message()])
        assert caught.value.delivered == 0
        assert directory in str(caught.value)
        os.chmod(directory, 0o700)
        if os.geteuid() == 0:
            os.chown(directory, 65534, 65534)
        with unprivileged():
            sink.send([message()])


def test_a_file_in_the_place_of_the_directory_may_go_away(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"")
    sink = transport(tmp_path / "data")
    with pytest.raises(RetryableError, match="data"):
        sink.send([message()])
    (tmp_path / "data").unlink()
    sink.send([message()])
    assert len(files(tmp_path)) == 1


def test_fsync_is_once_a_message_and_only_when_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    transport(tmp_path).send([message()])
    assert synced == []
    transport(tmp_path, fsync=True).send([message(), message()])
    assert len(synced) == 2


def test_what_cant_be_synced_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transport(tmp_path).send([message(b'{"n":1}')])

    def fail(_descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(RetryableError, match="Input/output error"):
        transport(tmp_path, fsync=True).send([message(b'{"n":2}')])
    assert list(files(tmp_path).values()) == [b'{"n":1}\n']


def test_keys() -> None:
    settings = convert(
        {"url": "dir:/data", "fsync": True, "format": "line"},
        DirectorySettings,
        "sinks.files",
        place="test.toml",
    )
    assert settings == DirectorySettings(url="dir:/data", fsync=True, format="line")
    assert not DirectorySettings(url="dir:/data").fsync
