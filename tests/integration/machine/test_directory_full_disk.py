"""`dir:PATH` on a file system that is full. Only root may mount one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ccagent.errors import RetryableError
from ccagent.records.message import Format, Message
from ccagent.transports.directory import DirectorySettings, DirectoryTransport

LAST_SECOND_OF_JANUARY = 1_769_903_999.0


def message(body: bytes, kind: str = "sample", form: Format = "sonar") -> Message:
    return Message("fox", "c1-1.fox", kind, form, LAST_SECOND_OF_JANUARY, body)


def transport(path: Path) -> DirectoryTransport:
    return DirectoryTransport(DirectorySettings(url=f"dir:{path}"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    options = "size=64k,mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_cuts_no_line_off(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(30_000))
    sink = transport(small_disk / "data")
    batch = [message(b'{"number":%d,"fill":"%s"}' % (n, b"x" * 5000)) for n in range(20)]

    with pytest.raises(RetryableError, match="No space left") as caught:
        sink.send(batch)
    delivered = caught.value.delivered
    assert 0 < delivered < 20
    file = small_disk / "data/2026/01/31/0+sample-c1-1.fox.json"
    assert file.read_bytes() == b"".join(m.body + b"\n" for m in batch[:delivered])

    ballast.unlink()
    sink.send(batch[delivered : delivered + 2])
    assert file.read_bytes() == b"".join(m.body + b"\n" for m in batch[: delivered + 2])


def test_a_full_disk_cuts_no_block_of_points_off(small_disk: Path) -> None:
    sink = transport(small_disk)
    points = message(b"load,hostname=c1-1 value=1 1700000000\n" * 400, "metrics", "line")
    with pytest.raises(RetryableError) as caught:
        sink.send([points] * 10)
    file = small_disk / "2026/01/31/metrics-c1-1.fox.line"
    assert file.read_bytes() == points.body * caught.value.delivered
