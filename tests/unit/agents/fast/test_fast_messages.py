"""Messages of FAST: the specification's examples, what programs send, and everything else."""

from __future__ import annotations

import tracemalloc
from random import Random
from typing import TYPE_CHECKING, cast, get_args

import pytest
import yaml

from ccagent.agents.fast.messages import documents
from ccagent.agents.fast.messages import structures as fast
from ccagent.agents.fast.messages.decoding import Subject, decode
from ccagent.agents.fast.messages.documents import LARGEST_PAYLOAD, parse_document
from ccagent.agents.fast.messages.structures import KPIS

if TYPE_CHECKING:
    from ccagent.agents.fast.messages.documents import Document

SUBJECTS = cast("tuple[Subject, ...]", get_args(Subject))

INIT_OF_SPECIFICATION = b"""task: init agent
KPI:
  categories:
    - Application/VM memory usage : 1
    - Application/VM Cpu usage: 100
    - Node memory usage : 5
    - Node memory bandwidth : 5
    - Node Cpu usage: 50
    - Node Network Interconnect bandwidth: 9
    - communication intensity (network): high
    - expected runtime: low
  repeat: 10
"""
INIT_OF_PROGRAMS = b"""---
task: init agent
KPI:
  categories:
    Node Cpu usage: true
    Node memory usage: ~
  repeat: 3
---
"""


def test_an_init_agent_of_the_specification() -> None:
    found = decode("agent task", INIT_OF_SPECIFICATION)
    schedulers = {fast.COMPUTE, fast.INPUT_OUTPUT, fast.ENERGY}
    named = tuple(name for name in KPIS if name not in schedulers)
    assert found == fast.InitAgent(categories=named, repeat=10)


def test_the_categories_of_the_public_scheduler_are_kpis() -> None:
    """`dummy-scheduler` sends these, and one of them in no program or specification."""
    text = b"""---
task: init agent
KPI:
  categories:
    energy consumption: low
    compute intensity: high
    IO intensity: high
    communication intensity (network): high
    expected runtime: low
    mood: good
  repeat: 5
---
"""
    assert decode("agent task", text) == fast.InitAgent(
        categories=(
            fast.ENERGY, fast.COMPUTE, fast.INPUT_OUTPUT, fast.COMMUNICATION, fast.RUNTIME
        ),
        repeat=5,
        ignored=("'mood'",),
    )  # fmt: skip


def test_a_refusal_names_all_allowed_categories() -> None:
    found = decode("agent task", b"KPI: {categories: {color: 1}, repeat: 1}")
    assert isinstance(found, fast.Refusal)
    assert all(name in found.reason for name in KPIS)


def test_an_init_agent_as_a_map_between_dashes() -> None:
    found = decode("agent task", INIT_OF_PROGRAMS)
    assert found == fast.InitAgent(categories=("Node Cpu usage", "Node memory usage"), repeat=3)


def test_a_category_that_is_switched_off_is_not_wanted() -> None:
    text = (
        b"task: init agent\nKPI: {categories: {node cpu USAGE: no, expected runtime: 1}, repeat: 1}"
    )
    assert decode("agent task", text) == fast.InitAgent(categories=("expected runtime",), repeat=1)


def test_a_missing_task_is_known_by_what_is_there() -> None:
    text = b"KPI: {repeat: 4}"
    assert decode("agent task", text) == fast.InitAgent(categories=(), repeat=4)
    assert decode("agent task", text, "init_agent") == fast.InitAgent(categories=(), repeat=4)
    assert decode("bandwidth request", b"cores: [0, 2]") == fast.BandwidthRequest(cores=(0, 2))


def test_stop_monitoring_in_lines_and_on_one() -> None:
    wanted = fast.StopMonitoring(job_id="0815", process_id=4711)
    lines = b"---\ntask: stop monitoring\njob-description:\n  job-id: 0815\n  process-id: 4711\n---"
    one = b"task: stop monitoring job-description: job-id: 0815 process-id: 4711"
    assert decode("agent task", lines) == wanted
    assert decode("agent task", one) == wanted
    assert decode("agent task", b"---\n" + one + b"\n---\n") == wanted


def test_an_empty_id_is_none() -> None:
    """A container of fast-lib without an id is written with `id: ""`."""
    task = decode("machine task", b'---\ntask: suspend vm\nlist:\n  - vm-name: a\nid: ""\n---')
    assert isinstance(task, fast.OrderMachines)
    assert (task.id, task.machines) == ("", (fast.MachineOrder(name="a"),))
    text = 'task: stop monitoring\njob-description: {job-id: "", process-id: %d}'
    assert decode("agent task", (text % 7).encode()) == fast.StopMonitoring(job_id="", process_id=7)
    found = decode("agent task", (text % 0).encode())
    assert isinstance(found, fast.Refusal)
    assert found.reason == "job-description: neither job-id nor process-id"


def test_results_of_the_migration_framework() -> None:
    text = b"""---
scheduler: global
result: vm started
id: 6a9a
list:
  - vm-name: vm-1
    status: success
    details: ready
    process-id: 100
  - vm-name: vm-2
    status: error
---"""
    assert decode("machine result", text) == fast.MachineResult(
        id="6a9a",
        event="vm started",
        scheduler="global",
        machines=(
            fast.MachineOutcome(name="vm-1", is_success=True, process_id=100, details="ready"),
            fast.MachineOutcome(name="vm-2", is_success=False),
        ),
    )
    text = b"""result: vm migrated
id: 1
vm-name: vm-1
status: success
process-id: 7
details: 2
time-measurement:
  - pscom: 0.5
  - migrate: 12.25
"""
    assert decode("machine result", text) == fast.MachineResult(
        id="1",
        event="vm migrated",
        machines=(
            fast.MachineOutcome(
                name="vm-1",
                is_success=True,
                process_id=7,
                details="2",
                durations={"pscom": 0.5, "migrate": 12.25},
            ),
        ),
    )


def test_an_application_declares_its_kpis() -> None:
    text = (
        b"task: status\nsource: 77\nmigration: no\nsupported_KPI :\n  - memory usage\n  - flops\n"
    )
    assert decode("application status", text) == fast.ApplicationStatus(
        job="77", is_migratable=False, supported=("memory usage", "flops")
    )
    text = b"task: KPIs\nsource: 77\nsupported_KPI :\n  - memory usage : 5\n  - phase : solve\n"
    assert decode("application kpis", text) == fast.ApplicationKpis(
        job="77", values={"memory usage": 5.0, "phase": "solve"}
    )


TASKS: list[tuple[bytes, fast.MachineTask]] = [
    (
        b"""task: start vm
id: u
vm-configurations:
  - {vm-name: vm-1, memory: 1024, vcpus: 2, transient: true}
  - {xml: <domain/>, pci-ids: [{vendor: 0x15b3, device: 0x1004}]}
""",
        fast.StartMachines(
            id="u",
            machines=(
                fast.MachineConfiguration(name="vm-1", memory=1024, vcpus=2, is_transient=True),
                fast.MachineConfiguration(xml="<domain/>", pci_ids=((0x15B3, 0x1004),)),
            ),
        ),
    ),
    (
        b"task: stop vm\nlist: [{vm-name: vm-1, force: yes}]\nconcurrent-execution: no",
        fast.OrderMachines(
            task="stop vm", is_concurrent=False,
            machines=(fast.MachineOrder(name="vm-1", is_forced=True),),
        ),
    ),
    (
        b"""task: migrate vm
vm-name: a
destination: c2
time-measurement: true
parameter:
  retry-counter: 3
  migration-type: warm
  rdma-migration: true
  pscom-hook-procs: 4
  vcpu-map: [[4], [5, 6]]
  swap-with: {vm-name: b}
""",
        fast.MigrateMachine(
            machine=fast.MigratingMachine(name="a", hook_processes=4, vcpu_map=((4,), (5, 6))),
            destination="c2",
            swap_with=fast.MigratingMachine(name="b"),
            migration_type="warm",
            uses_rdma=True,
            retries=3,
            measures_time=True,
        ),
    ),
    (
        b"task: repin vm\nvm-name: vm-1\nvcpu-map: [[4, 5], [4, 5]]",
        fast.RepinMachine(name="vm-1", vcpu_map=((4, 5), (4, 5))),
    ),
    (b"task: quit", fast.MachineTask(task="quit")),
]  # fmt: skip


@pytest.mark.parametrize(("payload", "task"), TASKS, ids=[task.task for _, task in TASKS])
def test_tasks_of_the_migration_framework(payload: bytes, task: fast.MachineTask) -> None:
    assert decode("machine task", payload) == task


SENT: list[tuple[Subject, fast.SentMessage]] = [
    ("agent task", fast.InitAgent(id="a", categories=("Node Cpu usage",), repeat=5)),
    ("bandwidth request", fast.BandwidthRequest(id="a", cores=(1, 2))),
    (
        "bandwidth response",
        fast.BandwidthResponse(cores=(1,), value=0.5, cpu_share=0.99, bandwidth=1e9),
    ),
    ("bandwidth response", fast.BandwidthResponse(cores=(1,), details="no core 1")),
    (
        "agent status",
        fast.KpiReport(source="c1", values={"Node Cpu usage": 1.5}, process_id=3, vm_name="vm-1"),
    ),
    (
        "machine result",
        fast.MachineResult(
            event="vm stopped", machines=(fast.MachineOutcome(name="a", is_success=True),)
        ),
    ),
    (
        "machine result",
        fast.MachineResult(
            event="vm repinned",
            machines=(fast.MachineOutcome(name="a", is_success=False, details="no"),),
        ),
    ),
]
PAYLOADS = [message.encode() for _, message in SENT] + [payload for payload, _ in TASKS]


@pytest.mark.parametrize(
    ("subject", "message"),
    SENT,
    ids=[f"{i}-{type(m).__name__}" for i, (_, m) in enumerate(SENT)],
)
def test_what_is_written_is_read_again(subject: Subject, message: fast.SentMessage) -> None:
    payload = message.encode()
    assert payload.startswith(b"---\n")
    assert payload.endswith(b"\n---\n")
    assert decode(subject, payload) == message


def test_an_init_has_what_both_peers_look_for() -> None:
    payload = fast.AgentPresence(task="init", source="c1").encode()
    document = next(iter(yaml.safe_load_all(payload)))
    assert document == {"task": "init", "source": "c1", "hostname": "c1"}


def test_a_report_is_a_list_of_maps_without_a_result() -> None:
    values: dict[str, float | str] = {"Node Cpu usage": 12.5, "Node memory usage": 1e10}
    report = fast.KpiReport(source="c1", values=values | {"expected runtime": "low"})
    document = next(iter(yaml.safe_load_all(report.encode())))
    assert document == {
        "task": "KPI",
        "source": "c1",
        "KPIS": [
            {"Node Cpu usage": 12.5},
            {"Node memory usage": 10_000_000_000},
            {"expected runtime": "low"},
        ],
    }
    assert b"Node memory usage: 10000000000\n" in report.encode()


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "task: '' is no task of the agent"),
        (b"[", "not YAML"),
        (b"\xff", "not text in UTF-8"),
        (b"a: &x 1\nb: *x", "anchors and aliases are refused"),
        (b"!!python/object/apply:os.system [ls]", "the tag"),
        (b"task: a\ntask: b", "the key 'task' occurs twice"),
        (b"[" * 1000, "nested more than 16 deep"),
        (b"a" * (LARGEST_PAYLOAD + 1), "65537 bytes, at most 65536 are read"),
        (b"[" + b"1," * 30_000 + b"]", "more than 20000 parts"),
        (b"a: " + b"x" * 5000, "a text of 5000 characters"),
        (b"task: init agent", "KPI: missing"),
        (b"KPI: {repeat: -1}", "KPI.repeat: expected a whole number, not '-1'"),
        (b"KPI: {repeat: 1.5}", "KPI.repeat: expected a whole number"),
        (
            b"KPI: {categories: {color: 1}, repeat: 1}",
            "KPI.categories: unknown: 'color'; allowed: ",
        ),
        (b"KPI: {categories: [[1]], repeat: 1}", "expected maps in the list"),
        (b"job-description: {}\ntask: stop monitoring", "neither job-id nor process-id"),
        (b"task: stop vm", "'stop vm' is no task of the agent"),
        (b"id: " + b"x" * 200 + b"\nKPI: {repeat: 1}", "id: longer than 128 characters"),
    ],
    ids=range(18),
)
def test_what_is_no_task_is_refused_with_a_reason(payload: bytes, reason: str) -> None:
    found = decode("agent task", payload)
    assert isinstance(found, fast.Refusal)
    assert reason in found.reason


def test_a_refusal_keeps_the_id_for_its_answer() -> None:
    found = decode("bandwidth request", b"id: q7\ncores: [one]", "request")
    assert found == fast.Refusal(
        reason="cores: expected a whole number, not 'one'", task="request", id="q7"
    )


def test_scalars_stay_text() -> None:
    found = parse_document(b"[0123, 1:30, 2001-01-01, yes, 0x10, ~, '~', '']")
    assert found == ["0123", "1:30", "2001-01-01", "yes", "0x10", None, "~", ""]


_PIECES = (
    b"- ",
    b": ",
    b"&a ",
    b"*a",
    b"[",
    b"{",
    b"!",
    b"\n",
    b"---\n",
    b"\0",
    b"\xff",
    b'"',
    b"#",
)


def _damaged(random: Random) -> bytes:
    """Return a message with some of its bytes changed, cut, inserted or repeated; or just bytes."""
    if random.random() < 0.1:
        return random.randbytes(random.randrange(300))
    payload = bytearray(random.choice(PAYLOADS))
    for _ in range(random.randrange(1, 8)):
        place = random.randrange(len(payload) + 1)
        match random.randrange(4):
            case 0:
                payload[place : place + 1] = random.randbytes(1)
            case 1:
                del payload[place : place + random.randrange(1, 40)]
            case 2:
                payload[place:place] = random.choice(_PIECES)
            case _:
                payload[place:place] = payload[place:]
    return bytes(payload[:4096])


@pytest.mark.slow
@pytest.mark.parametrize(("loader", "count"), [("CSafeLoader", 10_000), ("SafeLoader", 500)])
def test_no_payload_makes_decoding_raise(
    loader: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "_LOADER", getattr(yaml, loader))
    random = Random(20261122)
    refused = 0
    for _ in range(count):
        found = decode(random.choice(SUBJECTS), _damaged(random))
        assert isinstance(found, fast.FastMessage | fast.Refusal)
        if isinstance(found, fast.Refusal):
            refused += 1
            assert found.reason
    assert count // 2 < refused < count


@pytest.mark.parametrize(
    "payload",
    [
        b"[" * LARGEST_PAYLOAD,
        b"{a: " * (LARGEST_PAYLOAD // 4),
        b"- " * (LARGEST_PAYLOAD // 2),
        b"? " * (LARGEST_PAYLOAD // 2),
        b"a,\n" * (LARGEST_PAYLOAD // 3),
        b'"' + b"\\n" * (LARGEST_PAYLOAD // 2 - 1) + b'"',
        b"&a [" + b"*a," * (LARGEST_PAYLOAD // 3 - 2) + b"]",
        b"".join(b"- k%d: v\n" % i for i in range(5000)),
    ],
    ids=["lists", "maps", "items", "keys", "plain", "quoted", "aliases", "pairs"],
)
def test_a_payload_as_large_as_can_be_takes_bounded_memory(payload: bytes) -> None:
    decode("agent task", b"task: warm up")
    tracemalloc.start()
    try:
        decode("agent task", payload[:LARGEST_PAYLOAD])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 32 * 1024 * 1024


def test_a_document_is_the_first_of_its_stream() -> None:
    wanted: Document = {"a": "1"}
    assert parse_document(b"---\na: 1\n---\n") == wanted
    assert parse_document(b"a: 1\n---\nb: [") == wanted
    assert parse_document(b"%YAML 1.1\n---\na: 1\n...\n") == wanted
    assert parse_document(b"") is None


def test_names_of_machines_are_bounded() -> None:
    payload = f"result: vm started\nstatus: success\nvm-name: {'x' * 257}\nprocess-id: 1\n"
    found = decode("machine result", payload.encode())
    assert isinstance(found, fast.Refusal)
    assert found.reason == "vm-name: longer than 256 characters"
