"""SMART logs of NVMe drives."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.metrics.readers.nvme import (
    NvmeReader,
    NvmeSettings,
    parse_smart_log,
    read_smart_log,
    smart_command,
)
from ccagent.errors import CcagentError, NotHereError, NotPermittedError, UnparsableError
from ccagent.machine.node import Node
from tests.support.smart_log import smart_log
from tests.support.tree import TreeNode

LIMIT = 30


@pytest.fixture
def node(tmp_path: Path) -> TreeNode:
    node = TreeNode(tmp_path)
    node.write("../sys/class/nvme/nvme0/transport", "pcie\n")
    return node


def reader_of(read_log: Callable[[Node, str, float], bytes]) -> NvmeReader:
    """Make a reader that waits for slow drives."""
    reader = NvmeReader(read_log=read_log)
    reader.is_patient = True
    return reader


def log_of_drive(_node: Node, _controller: str, _seconds: float) -> bytes:
    return smart_log(kelvin=311, used=7, counters=[2000, 4000], sensors=[311, 0, 320])


def values(reader: NvmeReader, node: TreeNode) -> dict[tuple[str, str], float]:
    return {(each.metric, each.scope.stype_id): each.value for each in reader.read(node)}


def test_fields_are_where_the_specification_has_them() -> None:
    content = bytearray(range(256)) * 2
    content[0:6] = bytes([0x04, 0x37, 0x01, 100, 10, 3])
    content[192:200] = struct.pack("<II", 11, 12)
    content[200:216] = struct.pack("<8H", 300, 0, 310, 0, 0, 0, 0, 0xFFFF)
    log = parse_smart_log(bytes(content))

    def counter(start: int) -> int:
        return int.from_bytes(bytes(range(start, start + 16)), "little")

    assert log.sensors == {1: 27, 3: 37}
    assert log.values == {
        "nvme_critical_warning": 4, "nvme_temp": 0x137 - 273, "nvme_spare": 100,
        "nvme_spare_threshold": 10, "nvme_percentage_used": 3,
        "nvme_bytes_read": counter(32) * 512_000, "nvme_bytes_written": counter(48) * 512_000,
        "nvme_host_reads": counter(64), "nvme_host_writes": counter(80),
        "nvme_busy_time": counter(96) * 60, "nvme_power_cycles": counter(112),
        "nvme_power_on_time": counter(128) * 3600, "nvme_unsafe_shutdowns": counter(144),
        "nvme_media_errors": counter(160), "nvme_error_log_entries": counter(176),
        "nvme_warning_temp_time": 660, "nvme_critical_temp_time": 720,
    }  # fmt: skip


@pytest.mark.parametrize(
    "content",
    [b"", bytes(511), bytes(513), bytes(512), b"\xff" * 512, smart_log(spare=101)],
    ids=["empty", "short", "long", "zeroes", "ones", "spare"],
)
def test_what_is_no_log(content: bytes) -> None:
    with pytest.raises(UnparsableError):
        parse_smart_log(content)


@given(st.binary(min_size=512, max_size=512))
def test_any_512_bytes_are_a_log_or_unparsable(content: bytes) -> None:
    try:
        log = parse_smart_log(content)
    except UnparsableError:
        return
    assert 0 <= log.values["nvme_spare"] <= 100
    assert all(-273 < degrees <= 727 for degrees in log.sensors.values())
    assert log.values["nvme_bytes_written"] >= 0


def test_the_command_is_that_of_the_kernel() -> None:
    command = smart_command(0x1122_3344_5566_7788, 5000)
    assert len(command) == 72
    assert command[0] == 0x02
    assert struct.unpack_from("=I", command, 4) == (0xFFFF_FFFF,)
    assert struct.unpack_from("=Q", command, 24) == (0x1122_3344_5566_7788,)
    assert struct.unpack_from("=II", command, 32) == (0, 512)
    assert struct.unpack_from("=I", command, 40) == (127 << 16 | 2,)
    assert struct.unpack_from("=I", command, 64) == (5000,)


def test_values_of_a_drive_and_its_sensors(node: TreeNode) -> None:
    reader = reader_of(log_of_drive)
    found = values(reader, node)
    assert found["nvme_temp", "nvme0"] == 38
    assert found["nvme_percentage_used", "nvme0"] == 7
    assert found["nvme_bytes_read", "nvme0"] == 1_024_000_000
    assert found["nvme_bytes_written", "nvme0"] == 2_048_000_000
    assert found["nvme_temp_sensor", "nvme0/1"] == 38
    assert found["nvme_temp_sensor", "nvme0/3"] == 47
    assert {metric for metric, _ in found} == set(reader.metrics)
    assert reader.errors == []


def test_drives_of_other_machines_are_not_read(node: TreeNode) -> None:
    node.write("../sys/class/nvme/nvme1/transport", "tcp\n")
    node.write("../sys/class/nvme/nvme2/model", "before Linux 4.10\n")
    node.write("../sys/class/nvme/nvme10/transport", "pcie\n")
    node.write("../sys/class/nvme/nvme-subsys0/model", "no controller\n")
    asked: list[str] = []

    def read_log(_node: Node, controller: str, _seconds: float) -> bytes:
        asked.append(controller)
        return smart_log()

    list(reader_of(read_log).read(node))
    assert asked == ["nvme0", "nvme2", "nvme10"]


def test_a_drive_that_fails_costs_its_own_values(node: TreeNode) -> None:
    node.write("../sys/class/nvme/nvme1/transport", "pcie\n")
    node.write("../sys/class/nvme/nvme2/transport", "pcie\n")

    def read_log(node: Node, controller: str, seconds: float) -> bytes:
        if controller == "nvme0":
            raise NotPermittedError("/dev/nvme0: Permission denied")
        return bytes(512) if controller == "nvme1" else log_of_drive(node, controller, seconds)

    reader = reader_of(read_log)
    assert {each.scope.stype_id.partition("/")[0] for each in reader.read(node)} == {"nvme2"}
    assert reader.errors == [
        (
            "/dev/nvme0: Permission denied: reading SMART logs: "
            "CAP_SYS_ADMIN and CAP_DAC_READ_SEARCH needed"
        ),
        "/dev/nvme1: SMART log without content",
    ]


def test_a_drive_that_hangs_stalls_no_sample(node: TreeNode) -> None:
    answers = threading.Event()

    def read_log(node: Node, controller: str, seconds: float) -> bytes:
        answers.wait(LIMIT)
        return log_of_drive(node, controller, seconds)

    reader = NvmeReader(read_log=read_log)
    assert list(reader.read(node)) == []
    node.clock.sleep(60)
    assert list(reader.read(node)) == []
    assert reader.errors == ["still running; not started again"]
    answers.set()
    reader.is_patient = True
    assert list(reader.read(node))


def test_controllers_can_be_excluded(node: TreeNode) -> None:
    with pytest.raises(NotHereError):
        NvmeReader(NvmeSettings(exclude=("nvme*",)), log_of_drive).read(node)


def test_no_drive_is_asked_for_what_nobody_wants(node: TreeNode) -> None:
    reader = reader_of(log_of_drive)
    reader.wanted = frozenset({"cpu_user"})
    assert reader.read(node) == []


def test_without_drives_there_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotHereError):
        reader_of(log_of_drive).read(TreeNode(tmp_path))


def test_a_file_that_is_no_drive_is_an_error(node: TreeNode) -> None:
    node.write("../dev/nvme0", "")
    with pytest.raises(CcagentError, match="/dev/nvme0: "):
        read_smart_log(node, "nvme0", 1)
