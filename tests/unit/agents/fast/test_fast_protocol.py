"""What each message changes, and what is answered: the state machine without a broker."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from ccagent.agents.fast.kept_state import StateFile
from ccagent.agents.fast.kpis import ApplicationRelay
from ccagent.agents.fast.messages.structures import ApplicationStatus, BandwidthResponse
from ccagent.agents.fast.protocol import FastProtocol, FastTopics
from ccagent.agents.fast.session import AnswerQueue
from ccagent.agents.fast.settings import FastSettings
from ccagent.net.mqtt_broker import ReceivedMessage
from tests.support.tree import TreeNode
from tests.support.written_lines import written_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

TASK = "fast/agent/c1-1/task"
REQUEST = "fast/agent/c1-1/mmbwmon/request"
RESULT = "fast/migfra/c1-1/result"
INIT = "task: init agent\nKPI: {categories: {Node Cpu usage: 1}, repeat: 5}\n"


class FastScene:
    """A state machine with its queue and state, which a test can restart."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.node = TreeNode(directory / "node")
        self.directory = str(directory / "state")
        (directory / "state").mkdir(exist_ok=True)
        self.settings = FastSettings(state_directory=self.directory, **settings)
        self.published: list[dict[str, Any]] = []
        self._number = 0
        self.start()

    def restart(self) -> None:
        """Begin as a new process, with what the last one left on disk."""
        self.answers.close()
        self.start()

    def start(self) -> None:
        self.kept = StateFile(self.directory, self.node.hostname)
        self.kept.load()
        self.answers = AnswerQueue(self.directory, "fox", "c1-1")
        self.protocol = FastProtocol(
            self.node,
            self.settings,
            topics=FastTopics("fast", "c1-1"),
            kept=self.kept,
            answers=self.answers,
        )
        self.protocol.publish = lambda _, payload: self.published.append(_document(payload))
        self.protocol.restore()

    def send(
        self,
        topic: str,
        text: str,
        *,
        number: int = 0,
        repeated: bool = False,
        retained: bool = False,
    ) -> None:
        self._number += 1
        number = number or self._number
        payload = text.encode()
        self.protocol.on_message(ReceivedMessage(topic, payload, number, 1, repeated, retained))

    def taken(self) -> list[dict[str, Any]]:
        """Return the answers that wait, and forget them."""
        found: list[dict[str, Any]] = []
        while (answer := self.answers.first()) is not None:
            found.append(_document(answer.payload))
            self.answers.remove(answer)
        return found


def _document(payload: bytes) -> dict[str, Any]:
    found: dict[str, Any] = next(iter(yaml.safe_load_all(payload)))
    return found


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[FastScene]:
    made = FastScene(tmp_path)
    yield made
    made.answers.close()


def test_init_is_repeated_with_longer_pauses_until_configured(scene: FastScene) -> None:
    scene.protocol.on_connected()
    sent: list[float] = []
    for _ in range(3600):
        scene.node.still.passed += 1
        before = len(scene.published)
        scene.protocol.on_turn()
        if len(scene.published) > before:
            sent.append(scene.node.still.passed)
    pauses = [after - before for before, after in pairwise(sent)]
    assert 8 <= pauses[0] <= 13
    assert 240 <= max(pauses) <= 361
    assert all(each["task"] == "init" for each in scene.published)
    scene.send(f"{TASK}/init_agent", INIT)
    scene.published.clear()
    scene.node.still.passed += 1000
    scene.protocol.on_turn()
    assert scene.published == []
    assert scene.protocol.state == "monitoring"


def test_a_configuration_survives_a_restart(scene: FastScene) -> None:
    scene.send(f"{TASK}/init_agent", INIT)
    scene.taken()
    scene.restart()
    held = scene.protocol.configuration
    assert held is not None
    assert (held.categories, held.repeat) == (("Node Cpu usage",), 5)
    assert held.sender == f"{TASK}/init_agent"
    assert scene.taken() == []


def test_the_configuration_of_a_cloned_image_is_not_taken(tmp_path: Path) -> None:
    scene = FastScene(tmp_path)
    scene.send(TASK, INIT)
    other = StateFile(scene.directory, "c2")
    other.load()
    assert other.state.configuration is None


@pytest.mark.parametrize(
    ("text", "details"),
    [
        ("KPI: {repeat: 0}", "repeat: 0 s, at least 2 s (max-rate of the node)"),
        ("KPI: {repeat: 1}", "repeat: 1 s, at least 2 s (max-rate of the node)"),
        ("KPI: {repeat: 9999999}", "repeat: 9999999 s, at most 604800 s"),
        ("task: init agent", "KPI: missing"),
    ],
)
def test_what_would_be_too_dear_is_denied(tmp_path: Path, text: str, details: str) -> None:
    scene = FastScene(tmp_path, max_rate=0.5)
    scene.send(f"{TASK}/init_agent", text)
    (answer,) = scene.taken()
    assert answer["status"] == "denied"
    assert answer["details"] == details
    assert scene.protocol.configuration is None


def test_a_request_with_an_id_is_answered_once(scene: FastScene) -> None:
    text = f"id: q1\n{INIT}"
    scene.send(TASK, text)
    scene.send(TASK, text)
    assert [each["id"] for each in scene.taken()] == ["q1"]
    scene.restart()
    scene.send(TASK, text, repeated=True)
    assert scene.taken() == []


def test_a_request_without_an_id_is_answered_once_a_delivery(scene: FastScene) -> None:
    scene.send(TASK, INIT, number=7)
    scene.restart()
    scene.send(TASK, INIT, number=7, repeated=True)
    assert len(scene.taken()) == 1
    scene.send(TASK, INIT, number=8)
    scene.send(TASK, INIT, number=7)
    assert len(scene.taken()) == 2


def test_an_answer_on_disk_is_not_queued_again(scene: FastScene) -> None:
    """The process was killed after the answer was stored, and before the state was."""
    text = f"id: q1\n{INIT}"
    empty = scene.node.path.parent / "state" / "fast.state"
    scene.send(TASK, text)
    empty.unlink()
    scene.restart()
    scene.send(TASK, text, repeated=True)
    assert len(scene.taken()) == 1


def test_a_measurement_that_a_restart_cut_off_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = FastScene(tmp_path, mmbwmon=True)

    def start(*_: object) -> str:
        return ""

    monkeypatch.setattr(scene.protocol._bandwidth, "start", start)
    scene.send(REQUEST, "id: m1\ncores: [0]")
    assert scene.taken() == []
    scene.restart()
    (answer,) = scene.taken()
    assert answer["id"] == "m1"
    assert "restarted" in answer["details"]
    scene.restart()
    assert scene.taken() == []


def test_a_measurement_is_answered_when_it_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = FastScene(tmp_path, mmbwmon=True)
    done: list[Callable[[BandwidthResponse], None]] = []

    def start(_cores: Sequence[int], _machines: object, when_done: Any) -> str:
        done.append(when_done)
        return ""

    monkeypatch.setattr(scene.protocol._bandwidth, "start", start)
    scene.send(REQUEST, "task: mmbwmon request\ncores: [0, 1]\nid: m1\n---")
    done[0](BandwidthResponse(cores=(0, 1), value=0.75, cpu_share=1.0, bandwidth=2e9))
    (answer,) = scene.taken()
    assert answer == {
        "task": "mmbwmon response", "cores": [0, 1], "result": 0.75, "response": 0.75,
        "status": "success", "valid": True, "cpu-share": 1.0, "bandwidth": 2e9, "id": "m1",
    }  # fmt: skip
    assert scene.kept.state.pending == []


def test_measurements_are_refused_unless_they_are_allowed(scene: FastScene) -> None:
    scene.send(REQUEST, "cores: [0]")
    (answer,) = scene.taken()
    assert answer["status"] == "error"
    assert "not allowed" in answer["details"]


def _start_machine(scene: FastScene, process: int, name: str, start: int = 777) -> None:
    """Write the process of a machine, as libvirt starts it."""
    scene.node.process(process, command="qemu-system-x86", start=start)
    scene.node.write(f"{process}/comm", "qemu-system-x86\n")
    scene.node.write(
        f"{process}/cmdline", f"/usr/bin/qemu\0-name\0guest={name},debug-threads=on\0-S\0"
    )
    scene.node.still.passed += 10


def _monitored(scene: FastScene) -> list[tuple[str, int]]:
    return [(each.vm_name, each.process_id) for each in scene.protocol.list_monitored()]


def test_machines_are_found_and_results_only_annotate(scene: FastScene) -> None:
    _start_machine(scene, 100, "vm-1")
    assert _monitored(scene) == [("vm-1", 100)]
    scene.send(RESULT, "result: vm suspended\nlist:\n- {vm-name: vm-1, status: success}")
    assert [each.is_suspended for each in scene.kept.state.machines] == [True]
    scene.restart()
    assert _monitored(scene) == [("vm-1", 100)]
    assert [each.is_suspended for each in scene.kept.state.machines] == [True]
    scene.send(RESULT, "result: vm resumed\nlist:\n- {vm-name: vm-1, status: success}")
    assert [each.is_suspended for each in scene.kept.state.machines] == [False]
    scene.send(RESULT, "result: vm stopped\nlist:\n- {vm-name: vm-1, status: success}")
    scene.send(RESULT, "result: vm migrated\nvm-name: vm-1\nstatus: success\nprocess-id: 4711")
    assert _monitored(scene) == [("vm-1", 100)]
    scene.node.end(100)
    assert _monitored(scene) == []
    _start_machine(scene, 200, "vm-1")
    assert _monitored(scene) == [("vm-1", 200)]


def test_a_migrated_machine_is_found_without_any_message(scene: FastScene) -> None:
    """A result goes to the topic of the source only, and names no process."""
    assert _monitored(scene) == []
    _start_machine(scene, 300, "vm-9")
    assert _monitored(scene) == [("vm-9", 300)]


def test_a_result_that_names_another_process_is_not_believed(scene: FastScene) -> None:
    """16 parts with process 1 kept the agent from reporting any machine for 8 s."""
    scene.node.process(1)
    _start_machine(scene, 100, "vm-1")
    parts = "".join(f"- {{vm-name: m{n}, status: success, process-id: 1}}\n" for n in range(16))
    scene.send(RESULT, f"result: vm started\nlist:\n{parts}")
    assert _monitored(scene) == [("vm-1", 100)]
    scene.restart()
    assert _monitored(scene) == [("vm-1", 100)]


def test_a_number_that_another_process_has_now_is_not_monitored(scene: FastScene) -> None:
    _start_machine(scene, 100, "vm-1")
    assert _monitored(scene) == [("vm-1", 100)]
    scene.node.process(100, start=888)
    scene.node.write("100/cmdline", "sleep\0")
    scene.node.write("100/comm", "sleep\n")
    assert _monitored(scene) == []
    assert scene.kept.state.machines == []


def test_stop_monitoring_removes_one_and_the_rest_go_on(scene: FastScene) -> None:
    for process, name in ((100, "a"), (101, "b")):
        _start_machine(scene, process, name)
    stop = "task: stop monitoring\njob-description: {job-id: 5, process-id: 100}"
    scene.send(f"{TASK}/stop_monitoring", stop)
    scene.send(f"{TASK}/stop_monitoring", stop)
    assert [each["status"] for each in scene.taken()] == ["success", "error"]
    assert _monitored(scene) == [("b", 101)]
    scene.restart()
    assert _monitored(scene) == [("b", 101)]


def test_a_task_that_is_unknown_is_answered(scene: FastScene) -> None:
    scene.send(TASK, "task: dance")
    (answer,) = scene.taken()
    assert (answer["task"], answer["status"]) == ("dance", "error")


def test_categories_that_are_unknown_are_named_and_the_rest_accepted(scene: FastScene) -> None:
    scene.send(TASK, "KPI: {categories: {Node Cpu usage: 1, mood: 1}, repeat: 5}")
    (answer,) = scene.taken()
    assert (answer["status"], answer["details"]) == ("accepted", "ignored: 'mood'")
    held = scene.protocol.configuration
    assert held is not None
    assert held.categories == ("Node Cpu usage",)


def test_a_failed_measurement_can_have_a_number_for_peers(tmp_path: Path) -> None:
    scene = FastScene(tmp_path, mmbwmon_failed=0.33)
    scene.send(REQUEST, "cores: [0]")
    (answer,) = scene.taken()
    assert (answer["status"], answer["result"], answer["valid"]) == ("error", 0.33, False)


def test_a_slurm_job_is_monitored_until_it_is_stopped(scene: FastScene) -> None:
    job = scene.node.path / "sys/fs/cgroup/system.slice/slurmstepd.scope/job_42"
    job.mkdir(parents=True)
    (job / "cpu.stat").write_text("usage_usec 1\n")
    assert [each.job_id for each in scene.protocol.list_monitored()] == ["42"]
    assert "fast/application/42/KPIs" in scene.protocol.filters()
    scene.send(TASK, "task: stop monitoring\njob-description: {job-id: 42, process-id: 0}")
    assert scene.taken()[0]["status"] == "success"
    assert scene.protocol.list_monitored() == []
    job.rename(job.with_name("job_43"))
    assert [each.job_id for each in scene.protocol.list_monitored()] == ["43"]
    assert scene.kept.state.stopped_jobs == []


def test_a_retained_configuration_that_is_in_force_is_not_answered_again(scene: FastScene) -> None:
    scene.send(TASK, INIT, retained=True)
    scene.send(TASK, INIT, retained=True)
    assert len(scene.taken()) == 1


def test_an_application_speaks_for_itself_alone(scene: FastScene) -> None:
    scene.send(
        "fast/application/7/KPIs", "source: 7\nsupported_KPI: [{Memory usage: 5}, {x: high}]"
    )
    scene.send("fast/application/7/KPIs", "source: 8\nsupported_KPI: [{memory usage: 6}]")
    (point,) = scene.protocol.relay.take(scene.node)
    assert (point.name, point.value) == ("fast_app_memory_usage", 5.0)
    assert (point.tags["stype"], point.tags["stype-id"]) == ("job", "7")
    scene.send(
        "fast/application/7/status", "source: 7\nmigration: no\nsupported_KPI: [memory usage]"
    )
    assert not scene.protocol.relay.statuses["7"].is_migratable


def test_new_applications_replace_the_oldest_statuses() -> None:
    relay = ApplicationRelay()
    for job in [*map(str, range(1000)), "0", "new"]:
        iterated = relay.statuses
        before = len(iterated)
        relay.add(ApplicationStatus(job=job), job, 0.0)
        assert len(iterated) == before  # another thread may iterate it
    assert len(relay.statuses) == 1000
    assert list(relay.statuses)[-2:] == ["0", "new"]
    assert "1" not in relay.statuses


@pytest.mark.slow
def test_no_order_of_messages_leaves_it_in_a_state_without_a_name(scene: FastScene) -> None:
    scene.node.process(100)
    texts = [
        (TASK, INIT), (TASK, "KPI: {repeat: 0}"), (TASK, "KPI: {repeat: 9}"), (TASK, "["),
        (TASK, "task: stop monitoring\njob-description: {job-id: 1, process-id: 100}"),
        (REQUEST, "cores: [0]"), (REQUEST, "cores: []"), (TASK, "task: dance\nid: 4"),
        (RESULT, "result: vm started\nlist: {vm-name: a, status: success, process-id: 100}"),
        (RESULT, "result: vm stopped\nlist: {vm-name: a, status: success}"),
        (RESULT, "result: vm exploded"), ("fast/application/1/KPIs", "source: 1"),
        ("somewhere/else", "x"),
    ]  # fmt: skip
    chance = random.Random(7)
    accepted = None
    for _ in range(500):
        topic, text = chance.choice(texts)
        scene.send(topic, text)
        if text in {INIT, "KPI: {repeat: 9}"}:
            accepted = 5 if text == INIT else 9
        held = scene.protocol.configuration
        assert (held.repeat if held else None) == accepted
        assert scene.protocol.state == ("monitoring" if accepted else "waiting for a configuration")
        assert len(scene.kept.state.machines) <= 1
    scene.restart()
    held = scene.protocol.configuration
    assert held is not None
    assert held.repeat == accepted


def test_a_damaged_state_is_none(scene: FastScene, caplog: pytest.LogCaptureFixture) -> None:
    scene.send(TASK, INIT)
    path = scene.node.path.parent / "state" / "fast.state"
    path.write_bytes(path.read_bytes()[:-9] + b"damaged!!")
    scene.restart()
    assert scene.protocol.configuration is None
    assert "starting without a configuration" in caplog.text


def test_a_state_that_cant_be_written_costs_no_answer(
    scene: FastScene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ccagent.agents.base.replace_file", full)
    scene.send(TASK, INIT)
    assert scene.protocol.configuration is not None
    assert len(scene.taken()) == 1
    assert "No space left on device" in caplog.text


@pytest.mark.slow
def test_hostile_messages_write_one_line_of_a_kind(scene: FastScene) -> None:
    machines = "\n".join(f"  - {{vm-name: v{n}, status: success, process-id: 0}}" for n in range(9))
    with written_lines() as lines:
        for number in range(100):
            scene.send(f"{TASK}/t{number}", f"task: bad{number}\nid: i{number}\n")
            scene.send(TASK, f"task: init agent\nKPI: {{categories: {{}}, repeat: -{number}}}\n")
            scene.send(f"{TASK}/init_agent", INIT.replace("5", str(number + 2)))
            scene.send(f"{TASK}/stop_monitoring", f"job-description: {{job-id: j{number}}}\n")
            scene.send(REQUEST, f"cores: [{number}]\nid: m{number}\n")
            scene.send(f"fast/agent/c1-2/{number}", "")
            scene.send(RESULT, f"result: vm started\nlist:\n{machines.replace('v', f'v{number}-')}")
            scene.send(f"fast/application/{number}/KPIs", f"task: KPIs\njob-id: {number + 1}\n")
    assert len(lines) <= 12, lines
    assert sum(map(len, lines)) < 4000
    first = scene.protocol.senders.dearest()
    assert len(first) <= 11
    assert max(each.get("refused", 0) for each in first) >= 100
