"""Changes: leases, restores, files that refuse, vanish or lie, and starts after a crash."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from ccagent.controls.journal import JOURNAL_FILE, Journal, describe, read_audit, read_changes
from ccagent.errors import ControlError, UnparsableError
from ccagent.service.journal_file import format_line
from tests.support.control_machines import CPU, MachineNode, Site, add_os, allow, amd, grace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SWAP = "proc/sys/vm/swappiness"
ANY: dict[str, object] = {"min": 0, "max": 200}


@pytest.fixture
def node(tmp_path: Path) -> MachineNode:
    found = MachineNode(tmp_path)
    add_os(found)
    return found


def leased(node: MachineNode, lease: str = "2h") -> Site:
    return Site(node, allow(os__swappiness={**ANY, "lease": lease}))


def test_a_value_is_put_back_at_the_end_of_its_lease(node: MachineNode) -> None:
    site = leased(node)
    site.ask("os.swappiness", "10")
    node.still.sleep(7199)
    site.restore_due()
    assert node.text(SWAP) == "10"
    node.still.sleep(1)
    site.restore_due()
    assert node.text(SWAP) == "60"
    assert describe(site.entries[-1]) == "restored: os.swappiness@0 10 -> 60, by end of lease"


def test_setting_again_renews_the_lease_and_keeps_the_first_value_before(
    node: MachineNode,
) -> None:
    site = leased(node)
    for value in ("10", "20", "20"):
        site.ask("os.swappiness", value)
        node.still.sleep(7000)
    assert site.changes.find_due(None) == []
    assert [entry.action for entry in site.entries] == ["set", "set", "renewed"]
    node.still.sleep(200)
    site.restore_due()
    assert node.text(SWAP) == "60"


def test_a_request_may_ask_for_a_shorter_lease_only(node: MachineNode) -> None:
    site = leased(node)
    site.ask("os.swappiness", "10", lease="1m")
    assert site.changes.next_due() == 60
    site.ask("os.swappiness", "10", lease="1d")
    assert site.changes.next_due() == 7200
    assert site.ask("os.swappiness", "10", lease="soon")[0] == "ERROR"


def test_setting_the_value_before_ends_the_change(node: MachineNode) -> None:
    site = leased(node)
    site.ask("os.swappiness", "10")
    site.ask("os.swappiness", "60")
    assert site.changes.all() == []


def test_a_value_that_is_there_already_is_no_change(node: MachineNode) -> None:
    site = leased(node)
    assert site.ask("os.swappiness", "60")[1].endswith("SUCCESS!")
    assert site.changes.all() == []


def test_every_change_is_audited_with_who_and_the_value_before(node: MachineNode) -> None:
    site = leased(node)
    site.ask("os.swappiness", "10")
    (entry,) = read_audit(str(site.state), 10)
    assert (entry.control, entry.before, entry.requested, entry.by) == (
        "os.swappiness", "60", "10", "test",
    )  # fmt: skip
    assert (site.state / "audit.jsonl").stat().st_mode & 0o777 == 0o600


class Misbehaving(MachineNode):
    """Files that refuse, vanish, or lie."""

    def __init__(self, root: Path) -> None:
        self.refusal: Exception | None = None
        self.lie: bytes | None = None
        self.after_write: Callable[[], None] = lambda: None
        super().__init__(root)
        add_os(self)

    def write_file(self, path: str, content: bytes, offset: int | None = None) -> None:
        if self.refusal is not None:
            raise self.refusal
        super().write_file(path, content if self.lie is None else self.lie, offset)
        self.after_write()


def test_a_file_that_refuses_leaves_no_change(tmp_path: Path) -> None:
    node = Misbehaving(tmp_path)
    node.refusal = UnparsableError("/proc/sys/vm/swappiness: Invalid argument")
    site = leased(node)
    level, text = site.ask("os.swappiness", "10")
    assert (level, text) == ("ERROR", "/proc/sys/vm/swappiness: Invalid argument")
    assert site.changes.all() == []
    assert [entry.action for entry in site.entries] == ["failed", "refused"][:1]


def test_a_file_that_lies_gets_its_value_before(tmp_path: Path) -> None:
    node = Misbehaving(tmp_path)
    node.lie = b"99"
    site = leased(node)

    def tell_the_truth() -> None:
        node.lie = None

    node.after_write = tell_the_truth
    level, text = site.ask("os.swappiness", "10")
    assert level == "ERROR"
    assert "10 was written, 99 is read back; the value before is kept" in text
    assert node.text(SWAP) == "60"
    assert site.changes.all() == []


def test_a_file_that_goes_on_lying_is_tried_again_until_it_is_put_back(tmp_path: Path) -> None:
    node = Misbehaving(tmp_path)
    node.lie = b"99"
    site = leased(node)
    assert "tried again" in site.ask("os.swappiness", "10")[1]
    assert len(site.changes.all()) == 1
    for _ in range(3):
        node.still.sleep(700)
        site.restore_due()
        assert len(site.changes.all()) == 1
    node.lie = None
    node.still.sleep(700)
    site.restore_due()
    assert node.text(SWAP) == "60"
    assert site.changes.all() == []


def test_a_file_that_vanishes_is_put_back_when_it_comes_back(tmp_path: Path) -> None:
    node = Misbehaving(tmp_path)
    site = leased(node)
    site.ask("os.swappiness", "10")
    (tmp_path / SWAP).unlink()
    assert site.ask("restore", "")[0] == "ERROR"
    node.put(SWAP, 10)
    node.still.sleep(6)
    site.restore_due()
    assert node.text(SWAP) == "60"
    assert [e.action for e in site.entries] == ["set", "restore-failed", "restored"]


def test_a_value_that_somebody_else_changed_is_put_back_and_said(node: MachineNode) -> None:
    site = leased(node)
    site.ask("os.swappiness", "10")
    node.put(SWAP, 33)
    site.ask("restore", "")
    assert node.text(SWAP) == "60"
    assert "another program had changed it to 33" in describe(site.entries[-1])


def test_a_full_disk_sets_nothing(node: MachineNode, monkeypatch: pytest.MonkeyPatch) -> None:
    site = leased(node)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", full)
    level, text = site.ask("os.swappiness", "10")
    assert level == "ERROR"
    assert "No space left on device; nothing was set" in text
    assert node.text(SWAP) == "60"
    assert site.changes.all() == []
    monkeypatch.undo()
    assert site.ask("os.swappiness", "10")[0] == "INFO"


def test_the_value_before_is_on_disk_before_the_write(
    node: MachineNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = leased(node)
    steps: list[str] = []

    def sync(descriptor: int) -> None:
        del descriptor
        steps.append("sync")

    monkeypatch.setattr(os, "fdatasync", sync)
    write = node.write_file

    def recorded(path: str, content: bytes, offset: int | None = None) -> None:
        steps.append("write")
        write(path, content, offset)

    monkeypatch.setattr(node, "write_file", recorded)
    site.ask("os.swappiness", "10")
    assert steps == ["sync", "write", "sync"]


def test_a_crash_between_save_and_write_leaves_the_old_value(
    node: MachineNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = leased(node)

    def crash(*_: object) -> None:
        raise SystemExit

    monkeypatch.setattr(node, "write_file", crash)
    with pytest.raises(SystemExit):
        site.ask("os.swappiness", "10")
    monkeypatch.undo()
    again = site.restarted()
    assert node.text(SWAP) == "60"
    assert again.changes.all() == []
    assert [entry.action for entry in again.entries] == ["restored"]


def test_a_confirmed_change_keeps_its_lease_over_a_crash(node: MachineNode) -> None:
    site = leased(node)
    site.ask("os.swappiness", "10")
    node.still.sleep(3600)
    again = site.restarted()
    assert node.text(SWAP) == "10"
    node.still.sleep(3600)
    again.restore_due()
    assert node.text(SWAP) == "60"


def test_after_a_boot_the_kernels_own_values_stay(node: MachineNode) -> None:
    site = leased(node)
    site.ask("os.swappiness", "10")
    node.put("proc/sys/kernel/random/boot_id", "another")
    node.put(SWAP, 45)
    again = site.restarted()
    assert node.text(SWAP) == "45"
    assert [entry.action for entry in again.entries] == ["reset"]


def test_what_the_hardware_kept_over_a_boot_is_put_back(node: MachineNode) -> None:
    site = leased(node)
    site.ask("os.swappiness", "10")
    node.put("proc/sys/kernel/random/boot_id", "another")
    again = site.restarted()
    assert node.text(SWAP) == "60"
    assert again.entries[-1].by == "the machine kept it over a boot"


def test_what_the_policy_allows_no_more_is_put_back_at_the_start(node: MachineNode) -> None:
    site = leased(node)
    site.ask("os.swappiness", "10")
    site.journal.close()
    again = Site(node, allow(os__numa_balancing={"values": ["0"]}), state=site.state)
    again.changes.recover(again.policy.allows)
    assert node.text(SWAP) == "60"


@pytest.mark.parametrize("cut", [2, 20, 100])
def test_a_line_that_a_crash_cut_costs_only_itself(node: MachineNode, cut: int) -> None:
    site = leased(node)
    site.ask("os.swappiness", "10")
    site.journal.close()
    file = site.state / JOURNAL_FILE
    content = file.read_bytes()
    file.write_bytes(content[:-cut])
    (change,) = read_changes(str(site.state))
    assert (change.before, change.after) == ("60", None)
    again = site.restarted()
    assert node.text(SWAP) == "60"
    assert again.changes.all() == []


def test_a_damaged_line_is_skipped(node: MachineNode) -> None:
    site = Site(node, allow(os__swappiness=ANY, os__numa_balancing={"values": ["0"]}))
    site.ask("os.swappiness", "10")
    site.ask("os.numa_balancing", "0")
    site.journal.close()
    file = site.state / JOURNAL_FILE
    file.write_bytes(b"\x00garbage\n" + format_line(b'{"op":"what"}') + file.read_bytes())
    assert len(Journal(str(site.state)).all()) == 2


def test_the_journal_is_rewritten_when_it_grows(
    node: MachineNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ccagent.controls.journal._MOST_RECORDS", 30)
    site = Site(node, allow(os__swappiness=ANY))
    for number in range(60):
        site.ask("os.swappiness", str(10 + number % 2))
        site.ask("os.swappiness", "60")
    assert (site.state / JOURNAL_FILE).stat().st_size < 40 * 400
    assert site.changes.all() == []


def test_a_journal_of_another_user_is_refused(
    node: MachineNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = leased(node)
    site.journal.close()
    target = node.path / "precious"
    target.write_text("x")
    (site.state / JOURNAL_FILE).unlink()
    os.link(target, site.state / JOURNAL_FILE)
    with pytest.raises(ControlError):
        Journal(str(site.state))
    assert target.read_text() == "x"


def test_a_change_ends_with_the_job_that_owned_the_node(node: MachineNode) -> None:
    site = leased(node)
    node.job(4711)
    site.ask("os.swappiness", "10")
    site.restore_due(frozenset({4711}))
    assert node.text(SWAP) == "10"
    site.restore_due(frozenset())
    assert node.text(SWAP) == "60"
    assert site.entries[-1].by == "end of job 4711"


def test_the_epilog_puts_back_what_was_set_for_its_job(node: MachineNode) -> None:
    site = Site(node, allow(os__swappiness=ANY, os__numa_balancing={"values": ["0"]}))
    site.ask("os.numa_balancing", "0")
    node.job(4711)
    site.ask("os.swappiness", "10")
    assert site.ask("restore", "", job="4711") == ("INFO", "Restored 1 values: SUCCESS!")
    assert (node.text(SWAP), node.text("proc/sys/kernel/numa_balancing")) == ("60", "0")
    assert site.ask("restore", "", job="x")[0] == "ERROR"


@pytest.mark.parametrize("jobs", [(), (1, 2)])
def test_owner_only_accepts_puts_while_one_job_is_alone(
    node: MachineNode, jobs: tuple[int, ...]
) -> None:
    site = Site(node, allow(os__swappiness=ANY) | {"owner-only": True})
    for job in jobs:
        node.job(job)
    level, text = site.ask("os.swappiness", "10")
    assert level == "ERROR"
    assert f"{len(jobs)} jobs are on it" in text
    for job in jobs[1:]:
        node.end_job(job)
    if jobs:
        assert site.ask("os.swappiness", "10")[0] == "INFO"


def test_bounds_that_depend_on_each_other_are_put_back_in_reverse(tmp_path: Path) -> None:
    node = grace(tmp_path)
    bounds: dict[str, object] = {"min": 800000, "max": 3800000}
    site = Site(node, allow(cpu_freq__min_cpu_freq=bounds, cpu_freq__max_cpu_freq=bounds))
    assert site.ask_thread("cpu_freq.min_cpu_freq", "3900000", "1")[0] == "ERROR"
    assert site.ask_thread("cpu_freq.max_cpu_freq", "2000000", "1")[0] == "INFO"
    assert "above 2e+06" in site.ask_thread("cpu_freq.min_cpu_freq", "2500000", "1")[1]
    assert site.ask_thread("cpu_freq.min_cpu_freq", "1500000", "1")[0] == "INFO"
    site.ask("restore", "")
    assert node.text(f"{CPU}/cpu1/cpufreq/scaling_max_freq") == "3800000"
    assert [e.control for e in site.entries[-2:]] == [
        "cpu_freq.min_cpu_freq", "cpu_freq.max_cpu_freq",
    ]  # fmt: skip


def test_a_device_that_has_gone_is_no_crash(tmp_path: Path) -> None:
    node = amd(tmp_path)
    site = Site(node, allow(amd_gpu__power_limit_cur={"min": 100, "max": 500}))
    assert site.ask("amd_gpu.power_limit_cur", "300", kind="amd_gpu")[0] == "INFO"
    cap = "sys/bus/pci/devices/0000:c1:00.0/hwmon/hwmon3/power1_cap"
    (tmp_path / cap).unlink()
    again = site.restarted()
    assert len(again.changes.all()) == 1
    level, text = again.ask("restore", "")
    assert level == "ERROR"
    assert "tried again" in text
