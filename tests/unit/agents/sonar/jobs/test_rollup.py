"""Roll-up: the table of fields, and the record of several processes."""

from __future__ import annotations

from msgspec import structs

from ccagent.agents.sonar.jobs.rollup import pids_of_living, roll_up
from ccagent.records.envelopes import NO_FLOAT, ROLL_UP, SampleProcess

IDENTITY = {"pid", "ppid", "rolledup"}
"""Numbers that a rolled-up record sets itself."""


def test_every_number_of_a_process_is_rolled_up() -> None:
    numbers = {
        field.name
        for field in structs.fields(SampleProcess)
        if type(field.default) in {int, float}
    }  # fmt: skip
    assert numbers == {*ROLL_UP, *IDENTITY}


def test_a_rolled_up_record_has_the_sums() -> None:
    numbers = dict.fromkeys(ROLL_UP, 2) | {"cpu_avg": 0.1, "cpu_util": 0.125}
    one = structs.replace(SampleProcess(cmd="task", ppid=7), **numbers)
    group = [structs.replace(one, pid=pid) for pid in (11, 12, 13)]
    (record,) = roll_up(group, {7}, "1/0/1000", pids_of_living(4_194_304))
    sums = dict.fromkeys(ROLL_UP, 6) | {"cpu_avg": 0.3, "cpu_util": 0.375}
    assert {name: getattr(record, name) for name in ROLL_UP} == sums
    assert (record.cmd, record.ppid, record.rolledup) == ("task", 7, 2)
    assert record.pid > 4_194_304


def test_a_sum_of_nothing_is_omitted_from_the_envelope() -> None:
    group = [SampleProcess(cmd="task", pid=pid, ppid=7) for pid in (11, 12)]
    (record,) = roll_up(group, {7}, "1/0/1000", pids_of_living(4_194_304))
    assert record.cpu_avg is NO_FLOAT
    assert record.cpu_util is NO_FLOAT
