"""What the pinned iterators give, taken apart."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.errors import UnparsableError
from ccagent.machine.bpf.libbpf import essence
from ccagent.machine.bpf.pinned_file import HEADER
from ccagent.machine.bpf.process_records import (
    ENDED_LAYOUT,
    ENDED_MAGIC,
    ENDED_RECORD,
    KERNEL_THREAD,
    TASK_RECORD,
    TASKS_LAYOUT,
    TASKS_MAGIC,
    WORKER,
    WORKING,
    EndedKey,
    Task,
    Total,
    command,
    cpu_times,
    parse_header,
    parse_key,
    parse_raw,
    parse_record,
    parse_tasks,
    raw_records,
    ticks,
)
from tests.support.ended_records import Ended

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
NAMES = st.binary(max_size=15).map(lambda name: name.partition(b"\0")[0])
TASKS = st.builds(
    Task._make,
    st.tuples(
        *[U32] * 10,
        st.integers(0, 2**16 - 1),
        st.sampled_from(b"RSDTtXZPI"),
        *[U64] * 21,
        st.binary(min_size=48, max_size=48),
        st.binary(min_size=32, max_size=32),
    ),
)
KEYS = st.builds(EndedKey, U64.filter(bool), U64, U32, U32, U32, U32, NAMES) | st.builds(
    EndedKey, st.just(0), st.just(0), U32.filter(bool), st.just(0), U32, st.just(0), NAMES
)
SUMS = st.builds(Ended._make, st.tuples(*[U64] * 10))
NOBODY = bytes(ENDED_RECORD.size - 80)


LAYOUTS = {TASKS_MAGIC: TASKS_LAYOUT, ENDED_MAGIC: ENDED_LAYOUT}


def framed(
    magic: bytes,
    size: int,
    records: list[bytes],
    *,
    layout: int | None = None,
    end: bytes = b"ccended\n",
) -> bytes:
    layout = LAYOUTS[magic] if layout is None else layout
    begin = HEADER.pack(magic, layout, size, 77, 3)
    return begin + b"".join(records) + HEADER.pack(end, layout, 0, 78, 5)


def of_tasks(tasks: list[Task]) -> bytes:
    return framed(TASKS_MAGIC, TASK_RECORD.size, [TASK_RECORD.pack(*task) for task in tasks])


def for_ended(entries: dict[EndedKey, Ended], total: Total) -> bytes:
    records = [ENDED_RECORD.pack(*key, *sums) for key, sums in entries.items()]
    records.append(NOBODY + struct.pack("<10Q", *total))
    return framed(ENDED_MAGIC, ENDED_RECORD.size, records)


def task(**fields: int | bytes) -> Task:
    empty = Task._make([0] * 33 + [b"", b""])
    return empty._replace(**fields)  # type: ignore[arg-type]


TOTAL = Total._make(range(10))


@given(st.lists(TASKS, max_size=5))
def test_tasks_come_back_as_they_were(tasks: list[Task]) -> None:
    content = of_tasks(tasks)
    assert list(parse_tasks(content)) == tasks
    assert [parse_record(raw) for raw in raw_records(content)] == tasks
    assert parse_header(content)[1:] == (1, TASK_RECORD.size, 77, 3)


@given(st.dictionaries(KEYS, SUMS, max_size=5), st.builds(Total._make, st.tuples(*[U64] * 10)))
def test_ended_ones_come_back_as_they_were(entries: dict[EndedKey, Ended], total: Total) -> None:
    raw = parse_raw(for_ended(entries, total))
    assert (raw.total, raw.kept, raw.unseen) == (total, 3, 5)
    assert {parse_key(each[0]): each[1:] for each in raw.entries} == {
        key: (sums.processes, sums.runtime, sums.since, sums.last) for key, sums in entries.items()
    }


@given(st.lists(TASKS, max_size=3), st.lists(TASKS, min_size=1, max_size=3))
def test_who_began_while_the_end_was_read_is_not_looked_at(
    tasks: list[Task], late: list[Task]
) -> None:
    content = of_tasks(tasks) + b"".join(TASK_RECORD.pack(*task) for task in late)
    assert list(parse_tasks(content)) == tasks
    assert [parse_record(raw) for raw in raw_records(content)] == tasks


@given(st.data())
def test_a_reading_that_was_cut_off_is_refused(data: st.DataObject) -> None:
    for content, parse in (
        (of_tasks([task(pid=1), task(pid=2)]), parse_tasks),
        (
            for_ended({EndedKey(1, 1, 0, 1, 1, 0, b"sh"): Ended._make(range(10))}, TOTAL),
            parse_raw,
        ),
    ):
        end = data.draw(st.integers(0, len(content) - 1))
        with pytest.raises(UnparsableError, match=r"cut off|less than a header"):
            parse(content[:end])


@given(st.data())
def test_a_reading_with_a_piece_missing_is_refused(data: st.DataObject) -> None:
    content = of_tasks([task(pid=1), task(pid=2)])
    begin = data.draw(st.integers(HEADER.size, len(content) - HEADER.size - 1))
    size = data.draw(st.integers(1, TASK_RECORD.size - 1))
    with pytest.raises(UnparsableError, match="cut off"):
        parse_tasks(content[:begin] + content[begin + size :])


@given(st.binary(max_size=2000))
def test_whatever_else_is_there_is_refused(content: bytes) -> None:
    for parse in (parse_tasks, parse_raw):
        with pytest.raises(UnparsableError):
            parse(content)


def test_a_file_of_another_kind_is_named() -> None:
    tasks = of_tasks([])
    with pytest.raises(UnparsableError, match=r"begins with b'cctasks\\n' instead of b'ccexits"):
        parse_raw(tasks)


def test_another_layout_is_named() -> None:
    with pytest.raises(UnparsableError, match="layout 2 with records of 296 bytes instead of 1"):
        parse_tasks(framed(TASKS_MAGIC, TASK_RECORD.size, [], layout=2))
    with pytest.raises(UnparsableError, match="records of 100 bytes instead of 3 with 128"):
        parse_raw(framed(ENDED_MAGIC, 100, [bytes(100)]))


def test_a_reading_without_its_end_is_refused() -> None:
    records = [TASK_RECORD.pack(*task(pid=1))]
    for end in (b"cctasks\n", bytes(8)):
        with pytest.raises(UnparsableError, match="cut off"):
            parse_tasks(framed(TASKS_MAGIC, TASK_RECORD.size, records, end=end))


def test_sums_without_their_total_are_refused() -> None:
    entry = ENDED_RECORD.pack(*EndedKey(1, 1, 0, 5, 0, 0, b"sh"), *range(10))
    for records in ([], [entry]):
        content = framed(ENDED_MAGIC, ENDED_RECORD.size, records)
        with pytest.raises(UnparsableError, match="no total"):
            parse_raw(content)


def test_a_command_ends_at_its_zero() -> None:
    assert command(task(name=b"sh\0xyz" + bytes(42))) == b"sh"
    assert command(task(name=bytes(48))) == b""
    assert command(task(name=b"a) R 1 (b\n" + bytes(38))) == b"a) R 1 (b\n"


def test_a_worker_of_the_kernel_says_what_it_does() -> None:
    flags = KERNEL_THREAD | WORKER
    name, work = b"kworker/0:1" + bytes(37), b"events" + bytes(26)
    assert command(task(name=name, work=work, flags=flags)) == b"kworker/0:1-events"
    assert command(task(name=name, work=work, flags=flags | WORKING)) == b"kworker/0:1+events"
    assert command(task(name=name, work=bytes(32), flags=flags)) == b"kworker/0:1"
    assert command(task(name=name, work=work, flags=KERNEL_THREAD)) == b"kworker/0:1"
    longest = task(name=b"n" * 47 + b"\0", work=b"w" * 31 + b"\0", flags=flags)
    assert command(longest) == b"n" * 47 + b"-" + b"w" * 15


def test_measured_time_is_divided_as_the_ticks_were() -> None:
    assert cpu_times(task(runtime=1000, utime=30, stime=10)) == (750, 250)
    assert cpu_times(task(runtime=1000, utime=30)) == (1000, 0)
    assert cpu_times(task(runtime=1000, stime=10)) == (0, 1000)
    assert cpu_times(task(runtime=1000)) == (1000, 0)


def test_a_time_that_was_told_never_gets_less() -> None:
    assert cpu_times(task(runtime=1000, utime=30, stime=10, told_stime=400)) == (600, 400)
    assert cpu_times(task(runtime=1000, utime=30, stime=10, told_utime=900)) == (900, 100)
    assert cpu_times(task(runtime=1000, told_utime=700, told_stime=500)) == (700, 500)


TIMES = st.integers(0, 2**62)


@given(TIMES, TIMES, TIMES, TIMES, TIMES)
def test_both_times_are_what_was_measured(
    runtime: int, utime: int, stime: int, told_utime: int, told_stime: int
) -> None:
    one = task(
        runtime=runtime, utime=utime, stime=stime, told_utime=told_utime, told_stime=told_stime
    )
    user, system = cpu_times(one)
    assert user + system == max(runtime, told_utime + told_stime)
    assert user >= told_utime
    assert system >= told_stime


def test_ticks_are_cut_one_by_one() -> None:
    one = task(runtime=39_000_000, utime=1, stime=1, cutime=19_000_000, cstime=11_000_000)
    assert ticks(one, 100) == (2, 4)
    assert ticks(one, 1000) == (38, 68)


VERIFIER = """\
libbpf: prog 'tasks': BPF program load failed: Permission denied
libbpf: prog 'tasks': -- BEGIN PROG LOAD LOG --
0: (79) r1 = *(u64 *)(r1 +0)
R1 invalid mem access 'scalar'
processed 3 insns (limit 1000000) max_states_per_insn 0
-- END PROG LOAD LOG --
"""


def test_of_many_messages_the_one_that_says_why_is_told() -> None:
    assert essence(VERIFIER) == "R1 invalid mem access 'scalar'"
    assert essence("libbpf: elf: no such thing\nlibbpf: failed\n") == "elf: no such thing"
    assert essence("") == ""
    assert essence("processed 0 insns") == "processed 0 insns"
