"""Journal, places of an evacuation, templates, and golden results of the original framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest

from ccagent.agents.fast.kept_state import AnswerOnItsWay
from ccagent.agents.fast.messages.decoding import decode
from ccagent.agents.fast.messages.structures import (
    EvacuateNode,
    MachineConfiguration,
    MachineOutcome,
    MachineResult,
    MigrateMachine,
    OrderMachines,
    StartMachines,
)
from ccagent.config.duration import Duration
from ccagent.machines.framework import MOST_TASKS, TaskJournal
from ccagent.machines.hypervisor import HypervisorError
from ccagent.machines.operations import fill_template
from ccagent.machines.requests import BrokerRequests
from ccagent.machines.settings import MigfraSettings
from ccagent.machines.work import choose_places

if TYPE_CHECKING:
    from pathlib import Path

PINNING = "Error pinning vcpu: invalid argument: vcpu 1 is out of range of live cpu count 1"
GOLDEN = {
    "migrated, flat, with times in seconds": (
        """---
result: vm migrated
id: 1
vm-name: tiny
status: success
time-measurement:
  migrate: 2.608000
  overall: 2.618000
---""",
        MachineResult(
            id="1",
            event="vm migrated",
            machines=(
                MachineOutcome(
                    name="tiny", is_success=True, durations={"migrate": 2.608, "overall": 2.618}
                ),
            ),
        ),
    ),
    "repinned, as a list": (
        f"""---
result: vm repinned
list:
  - vm-name: tiny
    status: error
    details: "{PINNING}"
---""",
        MachineResult(
            event="vm repinned",
            machines=(
                MachineOutcome(
                    name="tiny",
                    is_success=False,
                    details=PINNING,
                ),
            ),
        ),
    ),
    "unknown": (
        "---\nresult: unknown\nlist:\n- {vm-name: unknown, status: error, details: bad}\n---",
        MachineResult(
            event="unknown",
            machines=(MachineOutcome(name="unknown", is_success=False, details="bad"),),
        ),
    ),
    "stopped by expression": (
        '---\nresult: vm stopped\nlist:\n  - vm-name: ".*"\n    status: success\n---',
        MachineResult(event="vm stopped", machines=(MachineOutcome(name=".*", is_success=True),)),
    ),
    "evacuated": (
        """---
result: node evacuated
list:
  - vm-name: tiny
    status: error
    details: No destination host left to evacuate to.
---""",
        MachineResult(
            event="node evacuated",
            machines=(
                MachineOutcome(
                    name="tiny",
                    is_success=False,
                    details="No destination host left to evacuate to.",
                ),
            ),
        ),
    ),
}
"""Results as the original wrote them when it was run against two libvirt daemons."""


@pytest.mark.parametrize("name", GOLDEN)
def test_results_of_the_original_are_read(name: str) -> None:
    text, result = GOLDEN[name]
    assert decode("machine result", text.encode()) == result


def test_tasks_of_the_original_are_read() -> None:
    migration = decode(
        "machine task",
        b"task: migrate vm\nvm-name: a\ndestination: b\nparameter:\n  retry_counter: 2\n"
        b"  swap-with: {vm-name: c, pscom-hook-procs: 4}\n",
    )
    assert isinstance(migration, MigrateMachine)
    # Existing programs migrate a paused copy unless they are told otherwise.
    assert (migration.migration_type, migration.retries) == ("warm", 2)
    assert migration.swap_with is not None
    assert migration.swap_with.hook_processes == 4
    stop = decode("machine task", b"task: stop vm\nlist: [{regex: '.*', force: true}]")
    assert isinstance(stop, OrderMachines)
    assert stop.refused == ("regex",)
    start = decode(
        "machine task",
        b"task: start vm\nvm-configurations: [{vm-name: a, devs: [{pci-addr: '1:2.3'}],"
        b" probe-with-ssh: false}]",
    )
    assert isinstance(start, StartMachines)
    assert start.refused == ("devs",)
    assert decode("machine task", b"task: evacuate node\ndestinations: [a, b]") == EvacuateNode(
        destinations=("a", "b")
    )


@pytest.mark.slow
def test_the_journal_keeps_tasks_and_results(tmp_path: Path) -> None:
    journal = TaskJournal(str(tmp_path))
    journal.accept("a", "d1", b"task")
    journal.accept("b", "d2", b"other")
    queued: list[str] = []
    journal.finish("b", b"result", lambda: queued.append("b"))
    journal.close()
    journal = TaskJournal(str(tmp_path))
    assert [each.key for each in journal.unfinished()] == ["a"]
    assert queued == ["b"]
    for number in range(MOST_TASKS + 5):
        journal.accept(f"n{number}", "d", b"")
        journal.finish(f"n{number}", b"r", lambda: None)
    assert journal.find("b") is None
    found = journal.find("a")
    assert found is not None
    assert found.payload == b"task"
    journal.close()


def test_a_damaged_line_of_the_journal_costs_only_itself(tmp_path: Path) -> None:
    journal = TaskJournal(str(tmp_path))
    journal.accept("a", "d", b"task")
    journal.state.sending = AnswerOnItsWay(key="a", number=7)
    journal.save()
    journal.close()
    file = tmp_path / "tasks.journal"
    file.write_bytes(b"damaged" * 1000 + b"\n" + file.read_bytes() + b"cut")
    journal = TaskJournal(str(tmp_path))
    assert [each.payload for each in journal.unfinished()] == [b"task"]
    assert journal.state.sending == AnswerOnItsWay(key="a", number=7)
    journal.close()
    assert (tmp_path / "tasks.journal.damaged").read_bytes().startswith(b"damaged")


@pytest.mark.parametrize(
    ("mode", "overbooked", "places"),
    [
        ("compact", True, ["a", "a", "b", "a", "a"]),
        ("compact", False, ["a", "a", "b", "", ""]),
        ("scatter", True, ["a", "b", "a", "b", "a"]),
        ("auto", False, ["a", "a", "b", "", ""]),
    ],
)
def test_places_of_an_evacuation(mode: str, overbooked: bool, places: list[str]) -> None:
    task = EvacuateNode(destinations=("a", "b"), mode=mode, is_overbooked=overbooked)  # type: ignore[arg-type]
    assert choose_places(5, {"a": 2, "b": 1}, task) == places


def test_a_template_gets_names_and_sizes_only() -> None:
    template = (
        b"<domain type='kvm'><uuid>1</uuid><name>x</name><memory>1</memory><devices>"
        b"<interface><mac address='52:54:00:00:00:01'/></interface></devices></domain>"
    )
    part = MachineConfiguration(name="vm-1", memory=2048, vcpus=2)
    found = fill_template(template, part)
    assert "<name>vm-1</name>" in found
    assert '<memory unit="KiB">2048</memory>' in found
    assert "<vcpu>2</vcpu>" in found
    assert "uuid" not in found
    assert "mac" not in found
    with pytest.raises(ValueError, match="not a definition"):
        fill_template(b"<network/>", part)


def _requests(form: Literal["word", "map"], limit: str) -> BrokerRequests:
    settings = MigfraSettings(pscom_form=form, pscom_limit=Duration(limit))
    return BrokerRequests(settings, "c1", {"vm-1": 77}.get)  # type: ignore[arg-type]


def test_pscom_gets_a_bare_word_where_it_reads_no_more() -> None:
    requests = _requests("word", "60s")
    published: list[tuple[str, bytes]] = []

    def publish(topic: str, payload: bytes) -> None:
        published.append((topic, payload))
        assert requests.filters() == ["fast/migfra/c1/locate", "fast/pscom/vm-1/+/response"]
        for process in ("1", "1", "2"):
            assert requests.on_message(f"fast/pscom/vm-1/{process}/response", b"")

    requests.publish, requests.look = publish, requests.send
    requests.hook("suspend", "vm-1", 2, "id")
    assert published == [("fast/pscom/vm-1/any_proc/request", b"suspend")]
    assert requests.filters() == ["fast/migfra/c1/locate"]
    assert not requests.on_message("fast/migfra/c1/task", b"")


def test_a_process_that_answers_twice_counts_once() -> None:
    requests = _requests("map", "10ms")
    requests.publish = lambda _topic, _payload: requests.on_message(
        "fast/pscom/vm-1/1/response", b""
    )
    requests.look = requests.send
    with pytest.raises(HypervisorError, match="1 of 2 processes answered"):
        requests.hook("resume", "vm-1", 2, "id")


@pytest.mark.slow
def test_frameworks_ask_each_other_for_a_process() -> None:
    here, there = _requests("map", "10ms"), _requests("map", "10ms")
    here.publish, here.look = there.on_message, here.send
    there.publish = here.on_message
    assert here.locate("c1", "vm-1") == 77
    assert here.locate("c1", "vm-2") == 0
    assert here.on_message("fast/migfra/c1/located", b"- not a map")
