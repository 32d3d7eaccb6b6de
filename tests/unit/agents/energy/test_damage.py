"""energy: whatever the files of a machine hold, a tick is taken and no microjoule is invented."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.energy_tree import AMD_RANGE, EnergyNode, make_meter

LARGE = b"18446744073709551615\n"
CONTENTS = st.one_of(
    st.binary(max_size=60),
    st.sampled_from([
        b"", b"\n", b"0\n", b"-1\n", LARGE, b"99999999999999999999\n", b"0-65535\n", b"7-3\n",
        b"usage_usec 18446744073709551615\n", b"max\n", b"cpu0 1 2 3\n",
        b"cpu0 18446744073709551615 0 18446744073709551615 0 0 0 0 0\n", b"nan\n", b"1 J\n",
    ]),
)  # fmt: skip
DEEDS = st.sampled_from(["write", "remove", "directory", "loop", "dangling"])


def machine(root: Path, version: int) -> EnergyNode:
    """Return a node with every source that is a file."""
    node = EnergyNode(root, version=version)
    node.zones()
    for name, text in (("energy", "5 J 1 us"), ("freshness", "1"), ("startup", "1")):
        node.write(f"sys/cray/pm_counters/{name}", f"{text}\n")
    node.write("sys/class/hwmon/hwmon0/name", "power_meter\n")
    node.write("sys/class/hwmon/hwmon0/power1_average", "300000000\n")
    node.job(1, "0-3")
    node.job(2, "2-7")
    return node


def damage(path: Path, deed: str, content: bytes) -> None:
    path.unlink()
    if deed == "write":
        path.write_bytes(content)
    elif deed == "directory":
        path.mkdir()
    elif deed == "loop":
        path.symlink_to(path)
    elif deed == "dangling":
        path.symlink_to("/nowhere")


@pytest.mark.slow
@settings(max_examples=max(8, settings().max_examples // 3))
@given(
    st.integers(1, 2),
    st.lists(st.tuples(st.integers(0, 200), DEEDS, CONTENTS), min_size=1, max_size=6),
)
def test_a_tick_is_taken_and_sums_hold(version: int, deeds: list[tuple[int, str, bytes]]) -> None:
    root = Path(tempfile.mkdtemp())
    try:
        node = machine(root, version)
        state = str(root / "energy.state")
        meter = make_meter(node, **{"idle-package": 40.0, "state-file": state})
        files = sorted(path for path in root.rglob("*") if path.is_file())
        for tick in range(4):
            for number, deed, content in deeds if tick == 1 else ():
                path = files[number % len(files)]
                if path.is_file() and not path.is_symlink():
                    damage(path, deed, content)
            node.still.sleep(10)
            found = meter.tick(node)
            for domain, energy in found.totals.measured.items():
                assert 0 <= energy <= AMD_RANGE
                assert sum(found.totals.split[domain].values()) in {energy, 0}
            for account in meter.ledger.jobs.values():
                assert 0 <= account.coverage <= 1
            meter.save()
        meter.close()
        again = make_meter(node, **{"state-file": state})
        again.tick(node)
        again.close()
    finally:
        shutil.rmtree(root, ignore_errors=True)
