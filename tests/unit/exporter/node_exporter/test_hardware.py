"""hwmon, edac, diskstats, mdadm: devices as files of /sys, the database of udev and mdstat."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.errors import NotHereError
from ccagent.exporter.node_exporter.devices import DiskCollector, read_mdadm
from ccagent.exporter.node_exporter.hardware import EdacCollector, HwmonCollector
from ccagent.machine.procfs.system import MdArray, parse_mdstat
from tests.support.scraped import collected, make
from tests.support.tree import TreeNode

Write = Callable[..., None]
MDSTAT = """\
Personalities : [raid1] [raid6] [raid5] [raid4] [raid0]
md0 : active raid1 sdb1[1] sda1[0](F) sdc1[2](S)
      195310144 blocks super 1.2 [2/1] [_U]
      bitmap: 0/2 pages [0KB], 65536KB chunk
      [=>...................]  recovery =  8.5% (16775552/195310144) finish=17.0min speed=25K/sec

md1 : active (auto-read-only) raid1 sdd1[0] sde1[1]
      4190208 blocks super 1.2 [2/2] [UU]
      \tresync=PENDING

md2 : active raid0 nvme0n1[0] nvme1n1[1]
      314159264 blocks super 1.2 512k chunks

md127 : inactive sdf[0](S)
      7932 blocks super external:imsm

unused devices: <none>
"""
"""The form of drivers/md/md.c: md_seq_show() and status_resync() of Linux 6.12."""


@pytest.fixture
def node(tmp_path: Path) -> TreeNode:
    return TreeNode(tmp_path)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(place: str, **files: str) -> None:
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (tmp_path / place / name).write_text(f"{content}\n")

    return write


def test_chips_of_one_device_have_their_own_label(
    node: TreeNode, write: Write, tmp_path: Path
) -> None:
    names = ("mt7996_phy0_0", "mt7996_phy0_1", "same", "same", "coretemp")
    for number, name in enumerate(names):
        device = "devices/platform/coretemp" if name == "coretemp" else "devices/ieee80211/phy0"
        place = f"sys/class/hwmon/hwmon{number}"
        write(place, name=name, temp1_input=f"{number + 50}000")
        (tmp_path / "sys" / device).mkdir(parents=True, exist_ok=True)
        (tmp_path / place / "device").symlink_to(tmp_path / "sys" / device)
    found = collected(make(HwmonCollector), node)
    prefix = "node_hwmon_temp_celsius"
    assert {name: value for name, value in found.items() if name.startswith(prefix)} == {
        f'{prefix}{{chip="{chip}",sensor="temp1"}}': value
        for chip, value in (
            ("ieee80211_phy0_mt7996_phy0_0", 50), ("ieee80211_phy0_mt7996_phy0_1", 51),
            ("ieee80211_phy0_hwmon2", 52), ("ieee80211_phy0_hwmon3", 53),
            ("platform_coretemp", 54),
        )
    }  # fmt: skip


def test_clocks_of_a_gpu_have_their_name(node: TreeNode, write: Write) -> None:
    files = {"freq1_input": "214000000", "freq1_label": "sclk", "freq2_input": "1"}
    write("sys/class/hwmon/hwmon4", name="amdgpu", **files)
    found = collected(make(HwmonCollector), node)
    clocks = {name: value for name, value in found.items() if "mhz" in name}
    assert clocks == {'node_hwmon_freq_freq_mhz{chip="amdgpu",sensor="sclk"}': 214}


def test_memory_errors_by_dimm(node: TreeNode, write: Write) -> None:
    place = "sys/devices/system/edac/mc/mc0/csrow2"
    write(place, ce_count="7", ch0_ce_count="5", ch1_ce_count="2", ch1_ue_count="1")
    write(place, ch0_dimm_label="CPU_SrcID#0_MC#0_Chan#0_DIMM#0")
    found = collected(make(EdacCollector), node)
    prefix = 'errors_total{channel="%d",controller="0",csrow="2",dimm_label="%s"}'
    first, second = prefix % (0, "CPU_SrcID0_MC0_Chan0_DIMM0"), prefix % (1, "unknown")
    assert {name: value for name, value in found.items() if "channel" in name} == {
        f"node_edac_channel_correctable_{first}": 5,
        f"node_edac_channel_correctable_{second}": 2,
        f"node_edac_channel_uncorrectable_{second}": 1,
    }


def test_a_disk_as_udev_knows_it(node: TreeNode, write: Write) -> None:
    node.write("diskstats", "   8  0 sda 1 2 3 4\n 253 0 zram0 1 2 3 4\n")
    lines = (
        "ID_SERIAL=LONG", "ID_SERIAL_SHORT=SHORT", "ID_MODEL=M", "ID_FS_TYPE=xfs", "ID_FS_UUID=u",
        "ID_ATA=1", "ID_ATA_ROTATION_RATE_RPM=7200", "ID_ATA_WRITE_CACHE=x",
    )  # fmt: skip
    write("run/udev/data", **{"b8:0": "".join(f"E:{line}\n" for line in lines)})
    write("sys/block/sda/queue", rotational="1")
    found = collected(make(DiskCollector), node)
    labels = 'model="M",path="",revision="",rotational="1",serial="SHORT",wwn=""'
    assert found[f'node_disk_info{{device="sda",major="8",minor="0",{labels}}}'] == 1
    labels = 'device="sda",type="xfs",usage="",uuid="u",version=""'
    assert found[f"node_disk_filesystem_info{{{labels}}}"] == 1
    assert found['node_disk_ata_rotation_rate_rpm{device="sda"}'] == 7200
    assert not [name for name in found if "zram0" in name or "write_cache" in name]


def test_arrays_of_disks(node: TreeNode, write: Write) -> None:
    with pytest.raises(NotHereError):
        collected(make(read_mdadm), node)
    node.write("mdstat", MDSTAT)
    write("sys/block/md0/md", raid_disks="2 (3)", degraded="1")
    found = collected(make(read_mdadm), node)
    values = {
        'disks{device="md0",state="active"}': 1, 'disks{device="md0",state="failed"}': 1,
        'disks{device="md0",state="spare"}': 1, 'disks_required{device="md0"}': 2,
        'state{device="md0",state="recovering"}': 1, 'state{device="md0",state="active"}': 0,
        'blocks_synced{device="md0"}': 16775552, 'degraded{device="md0"}': 1,
        'raid_disks{device="md0"}': 2, 'state{device="md1",state="resync"}': 1,
        'blocks_synced{device="md1"}': 0, 'disks{device="md2",state="active"}': 2,
        'blocks_synced{device="md2"}': 314159264, 'state{device="md127",state="inactive"}': 1,
        'disks_required{device="md127"}': 0,
    }  # fmt: skip
    assert {name: found[f"node_md_{name}"] for name in values} == values


@given(st.text(max_size=200) | st.text(max_size=60).map(lambda tail: MDSTAT[:160] + tail))
def test_any_mdstat_is_a_list(text: str) -> None:
    assert all(isinstance(each, MdArray) for each in parse_mdstat(text.encode()))
