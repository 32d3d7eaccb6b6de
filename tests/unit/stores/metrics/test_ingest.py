"""Lines: what is stored, what is skipped, what is refused; the fast paths do as the general one."""

from __future__ import annotations

import math
from array import array
from math import isnan
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccagent.stores.metrics.checkpoints import read_checkpoints
from ccagent.stores.metrics.general import GeneralIngest, LineMessage
from ccagent.stores.metrics.line_keys import MetricCatalogue, StoredMetric
from ccagent.stores.metrics.series_limits import PartLimits, SeriesLimits
from ccagent.stores.metrics.store import MetricStore
from tests.unit.stores.metrics.support import (
    NOW,
    ask,
    data,
    each_scanner,
    line,
    new_ingest,
    new_store,
    write_checkpoint,
)

if TYPE_CHECKING:
    from pathlib import Path

    from ccagent.records.line_protocol import Line
    from ccagent.stores.metrics.ingest import LineIngest

scanner = each_scanner


def stored(store: MetricStore) -> dict[tuple[str, ...], list[float]]:
    """All values, by level and metric."""
    found: dict[tuple[str, ...], list[float]] = {}
    for level in store.root.walk():
        for metric, (group, column) in level.series.items():
            values = [
                float(value)
                for block in group.ordered_blocks()
                for value in block.values[: block.rows, column]
                if not math.isnan(value)
            ]
            found[*level.path, metric] = values
    return found


@pytest.fixture
def store() -> MetricStore:
    return new_store()


@pytest.fixture
def ingest(store: MetricStore) -> LineIngest:
    return new_ingest(store)


@pytest.mark.parametrize(
    ("tags", "path"),
    [
        (",type=node", ()),
        ("", ()),
        (",type=node,type-id=0", ("0",)),
        (",type=hwthread,type-id=3", ("hwthread3",)),
        (",type-id=3,type=hwthread", ("hwthread3",)),
        (",type=accelerator,type-id=00000000:0E:00.0", ("accelerator00000000:0E:00.0",)),
        (",type=node,stype=job,stype-id=7", ("job7",)),
        (",type=socket,type-id=1,stype=core,stype-id=2", ("socket1", "core2")),
        (",unit=W,type=node", ()),
        (",type=core,type-id=..", ("core..",)),
        (",type=core,type-id=a/b\\\\c", ("corea/b\\\\c",)),
    ],
)  # fmt: skip
def test_tags_name_the_level(
    tags: str, path: tuple[str, ...], store: MetricStore, ingest: LineIngest
) -> None:
    body = f"load,cluster=fox,hostname=n1{tags} value=1 {NOW}\n".encode()
    for _ in range(2):
        assert ingest.write(body).stored == 1
    assert stored(store) == {("fox", "n1", *path, "load"): [1.0]}


def test_the_default_cluster_and_the_tag_host(store: MetricStore, ingest: LineIngest) -> None:
    ingest.write(f"load,host=n1 value=1 {NOW}".encode(), "elk")
    ingest.write(f"load,host=n1 value=2 {NOW}".encode(), "fox")
    assert stored(store) == {("elk", "n1", "load"): [1.0], ("fox", "n1", "load"): [2.0]}


@pytest.mark.parametrize(
    "text",
    [
        f"other,cluster=fox,hostname=n1 value=1 {NOW}",
        f"other,cluster=fox,hostname=n1 unit=true,x=2 {NOW}",
        'job,function=start_job,hostname=n1 event="{\\"a\\": 1}" 1',
        "# comment",
        "",
    ],
)
def test_what_the_store_does_not_take_is_skipped(
    text: str, store: MetricStore, ingest: LineIngest
) -> None:
    result = ingest.write(f"{text}\n{line('load', 1)}".encode())
    assert (result.stored, result.bad_count) == (1, 0)
    assert list(stored(store)) == [("fox", "n1", "load")]


@pytest.mark.parametrize("number", ["1_000", "1_000i", "0x10", "+1"])
@pytest.mark.parametrize("is_strict", [False, True])
def test_a_number_of_go_is_refused(number: str, is_strict: bool, store: MetricStore) -> None:
    """Also of a known series, whose lines take another path."""
    ingest = new_ingest(store, is_strict=is_strict)
    for time in (NOW - 60, NOW):
        assert ingest.write(line("load", 1, time).encode()).stored == 1
        result = ingest.write(line("load", number, time).encode())
        assert (result.stored, result.bad_count) == (0, 1)
        assert "expected a number" in result.bad[0].reason
    assert stored(store) == {("fox", "n1", "load"): [1.0, 1.0]}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (line("load", '"text"'), "expected a number as the value of a metric"),
        (line("load", "true"), "expected a number as the value of a metric"),
        (line("load", "NaN"), "expected a number"),
        (line("load", "1e999"), "expected a number of 64 bits"),
        (line("load", "1,other=2"), "' ' and a time"),
        (f"load,cluster=fox,hostname=n1 other=1 {NOW}\n", "expected the field value, not other"),
        (f"load,hostname=n1 value=1 {NOW}\n", "no tag cluster"),
        (f"load,cluster=fox value=1 {NOW}\n", "no tag hostname"),
        ("load\n", "expected"),
        (line("load", 1, NOW + 3601), "3601 s in the future; check the clock"),
        (line("load", 1, (NOW + 3601) * 1000), "3601 s in the future; check the clock"),
    ],
)
def test_a_bad_line_costs_that_line(
    bad: str, reason: str, store: MetricStore, ingest: LineIngest
) -> None:
    for _ in range(2):
        result = ingest.write((line("load", 1) + bad + line("power", 2)).encode())
        assert (result.stored, result.bad_count, result.bad[0].number) == (2, 1, 2)
        assert reason in result.bad[0].reason
    assert stored(store) == {("fox", "n1", "load"): [1.0], ("fox", "n1", "power"): [2.0]}


def test_strict_ends_at_the_first_bad_line(store: MetricStore) -> None:
    ingest = new_ingest(store, is_strict=True)
    result = ingest.write((line("load", 1) + "load\n" + line("power", 2)).encode())
    assert (result.stored, result.bad_count) == (1, 1)
    assert list(stored(store)) == [("fox", "n1", "load")]


@pytest.mark.parametrize("factor", [1, 10**3, 10**6, 10**9])
def test_times_are_read_in_any_unit(factor: int, store: MetricStore, ingest: LineIngest) -> None:
    begin = NOW - 600
    for step in range(3):
        ingest.write(line("load", step, (begin + 60 * step) * factor).encode())
    assert data(store, begin, begin + 180) == [0.0, 1.0, 2.0]


def test_a_missing_time_is_that_of_the_line_before_or_now(
    store: MetricStore, ingest: LineIngest
) -> None:
    first = "load,cluster=fox,hostname=n1 value=1\n"
    ingest.write(
        (first + line("power", 2, NOW - 600) + "clock,cluster=fox,hostname=n1 value=3\n").encode()
    )
    assert data(store, NOW - 600, NOW + 60) == [None] * 10 + [1.0]
    assert data(store, NOW - 600, NOW + 60, "clock") == [3.0]


def message(values: list[str], time: int = NOW, host: str = "n1") -> bytes:
    names = [f"load,cluster=fox,hostname={host},type=core,type-id={n}" for n in range(len(values))]
    return "".join(f"{a} value={b} {time}\n" for a, b in zip(names, values, strict=True)).encode()


def test_numbers_of_several_forms_need_no_decoder(store: MetricStore, ingest: LineIngest) -> None:
    for step in range(6):
        assert ingest.write(message(["1", "2.5", "-3e2", "4i"], NOW - 60 * step)).stored == 4
    assert ingest.counters.known == 5
    assert stored(store)["fox", "n1", "core3", "load"] == [4.0] * 6


def test_several_times_or_another_order_need_no_decoder(
    store: MetricStore, ingest: LineIngest
) -> None:
    ingest.write(message(["1", "2", "3"]))
    turned = b"".join(reversed(message(["4", "5", "6"], NOW + 60).splitlines(keepends=True)))
    ingest.write(turned)
    ingest.write(message(["7", "8", "9"], NOW + 120) + message(["1", "1", "1"], NOW + 180))
    assert ingest.counters.known == 2
    assert stored(store)["fox", "n1", "core2", "load"] == [3.0, 6.0, 9.0, 1.0]


@pytest.mark.parametrize(
    ("old", "new", "stored_count"),
    [
        # A line without a field whose measurement looks like a value.
        ("load,cluster=fox,hostname=n1,type=core,type-id=2 value=3", "7", 3),
        ("type-id=2 value=3", "type-id=2 value=3\n", 4),
        ("type-id=2 value=3", "type-id=2  value=3", 4),
        (f"3 {NOW}\n", f"3 {NOW} ", 2),
        (f"3 {NOW}\n", f"3 {NOW}\n\n", 4),
        (f"3 {NOW}\n", f"3 {NOW}\r\n", 4),
        (f"4 {NOW}\n", f"4 {NOW}", 4),
        (f"4 {NOW}\n", f"4 {NOW}\n# {NOW}\n", 4),
    ],
)
def test_a_message_of_nearly_a_known_shape_is_read_line_by_line(
    old: str, new: str, stored_count: int, store: MetricStore, ingest: LineIngest
) -> None:
    for step in (3, 2, 1):
        ingest.write(message(["9", "9", "9", "9"], NOW - 60 * step))
    body = message(["1", "2", "3", "4"]).decode()
    assert old in body
    assert ingest.write(body.replace(old, new).encode()).stored == stored_count
    assert stored(store)["fox", "n1", "core0", "load"][-1] == 1.0
    assert stored(store)["fox", "n1", "core1", "load"][-1] == 2.0


def test_late_and_skipped_rows_on_the_fast_path(store: MetricStore, ingest: LineIngest) -> None:
    for time in (0, 5, 3, 700, -2, 4):
        ingest.write(message([str(time)] * 4, NOW - 60_000 + 60 * time))
    query = {"metric": "load", "host": "n1", "type": "core", "type-ids": ["2"]}
    ((one,),) = ask(store, NOW - 60_120, NOW, query)
    found = {n - 2: value for n, value in enumerate(one["data"]) if value is not None}
    assert found == {-2: -2.0, 0: 0.0, 3: 3.0, 4: 4.0, 5: 5.0, 700: 700.0}


def test_removed_series_are_made_again(store: MetricStore, ingest: LineIngest) -> None:
    for _ in range(3):
        ingest.write(message(["1", "2", "3", "4"]))
    store.release_before(NOW + 10**6)
    assert stored(store) == {}
    ingest.write(message(["5", "6", "7", "8"]))
    assert stored(store)["fox", "n1", "core3", "load"] == [8.0]


@pytest.mark.parametrize("time", [0, -1, -NOW, 1, NOW - 3601, (NOW - 3601) * 1000, -(10**18)])
def test_lines_older_than_the_retention_are_refused(time: int, store: MetricStore) -> None:
    ingest = new_ingest(store, past=3600)
    edge = line("power", 2, NOW - 3600)
    for _ in range(3):
        result = ingest.write((line("load", 1, time) + edge).encode())
        assert (result.stored, result.bad_count, result.bad[0].number) == (1, 1, 1)
        assert " s ago; values are kept for 3600 s" in result.bad[0].reason
    assert list(stored(store)) == [("fox", "n1", "power")]
    for time_of_known in (NOW - 60, time):
        result = ingest.write(message(["1", "2", "3", "4"], time_of_known))
    assert (result.stored, result.bad_count) == (0, 4)


def test_the_reference_takes_old_lines(store: MetricStore) -> None:
    assert new_ingest(store, is_strict=True).write(line("load", 1, 0).encode()).stored == 1


def test_the_line_of_a_series_too_many_is_named(store: MetricStore) -> None:
    ingest = new_ingest(store, series=SeriesLimits(store, most=1))
    body = "# comment\n\n" + line("load", 1) + "other value=1\nload\n" + line("power", 2)
    result = ingest.write(body.encode())
    assert [one.number for one in result.bad] == [5, 6]
    assert "has 1 series (limits.series)" in result.bad[1].reason


def test_a_metric_has_no_longer_name_than_a_checkpoint(tmp_path: Path) -> None:
    store = MetricStore(MetricCatalogue({"*": StoredMetric(60, "avg")}), lambda: NOW)
    result = new_ingest(store).write((line("é" * 40_000, 1) + line("load", 2)).encode())
    assert (result.stored, result.bad[0].reason[:32]) == (1, "a name has more than 255 bytes: ")
    write_checkpoint(store.root.children["fox"].children["n1"], str(tmp_path), "binary", 0, NOW + 1)
    assert read_checkpoints(new_store(), str(tmp_path), 0) == 1


@pytest.mark.parametrize(
    ("tags", "is_taken"),
    [
        ("cluster=fox,hostname=" + "n" * 255, True),
        ("cluster=fox,hostname=" + "n" * 256, False),
        ("cluster=fox,hostname=" + "é" * 42, True),
        ("cluster=fox,hostname=" + "é" * 43, False),
        ("hostname=n1,cluster=" + "c" * 256, False),
        ("cluster=fox,hostname=n1,type=core,type-id=" + "1" * 256, False),
    ],
)
def test_a_name_fits_into_the_name_of_a_file(
    tags: str, is_taken: bool, store: MetricStore, ingest: LineIngest, tmp_path: Path
) -> None:
    result = ingest.write(f"load,{tags} value=1 {NOW}\n".encode())
    assert result.stored == is_taken
    if is_taken:
        (node,) = store.root.children["fox"].children.values()
        assert write_checkpoint(node, str(tmp_path), "json", NOW - 60, NOW + 60) == 1
    else:
        assert "a name has more than 255 bytes" in result.bad[0].reason


def test_a_limit_of_series_refuses_only_new_ones(store: MetricStore) -> None:
    ingest = new_ingest(store, series=SeriesLimits(store, most=2))
    result = ingest.write(message(["1", "2", "3"]))
    assert (result.stored, result.bad_count) == (2, 1)
    assert ingest.write(message(["4", "5"])).bad_count == 0


def test_the_columns_of_a_group_have_the_order_of_the_lines(store: MetricStore) -> None:
    """A sum over components is fast if their columns are equidistant."""
    lines = "".join(
        line(metric, 1, tags=f",type=core,type-id={core}")
        for metric in ("load", "power")
        for core in range(3)
    )
    new_ingest(store).write(lines.encode())
    (group,) = store.groups.values()
    assert group.metrics == ["load"] * 3 + ["power"] * 3


TOKENS = ["1", "1.5", "-2", "4i", "-4i", "4u", "4.5i", ".5", "5.", "+5", "007", "1_0", "0x10",
          "1e400", "nan", "inf", "t", "true", '"a"', "null", "[1]", "1e5", "-0", "1,x=2", "",
          "12345678901234567890", "9223372036854775808i"]  # fmt: skip


NEW_LINES = [
    *(line(f"load{n}", n) for n in range(4)),
    line("load0", 7),
    line("load1", 8, NOW + 60),
    line("load2", 9, tags=",type=core,type-id=1"),
    line("load3", 5, tags=",source=x,type=node"),
    line("disk_used", 6, tags=",type=node,mountpoint=/"),
    f"load1 value=3 {NOW}\n",
    "load2,cluster=fox,hostname=n1,type=node value=2\n",
    "load4,cluster=fox,hostname=n1,type=node value=x\n",
]


@pytest.mark.slow
@settings(max_examples=4 * settings().max_examples)
@given(st.lists(st.sampled_from(NEW_LINES), min_size=1, max_size=6))
def test_new_series_of_one_message_are_those_of_single_lines(lines: list[str]) -> None:
    together, alone = new_ingest(first := new_store()), new_ingest(second := new_store())
    for ingest in (together, alone):
        ingest.write("".join(NEW_LINES).replace("hostname=n1", "hostname=n0").encode())
    result = together.write("".join(lines).encode())
    results = [alone.write(one.encode()) for one in lines]
    assert stored(first) == stored(second)
    assert result.stored == sum(one.stored for one in results)
    assert result.bad_count == sum(one.bad_count for one in results)


@pytest.mark.slow
@settings(max_examples=4 * settings().max_examples)
@given(st.lists(st.sampled_from(TOKENS), min_size=4, max_size=6))
def test_fast_and_general_path_agree(values: list[str]) -> None:
    slow, quick = new_store(), new_store()
    told = LineMessage("")
    expected = GeneralIngest(
        slow, future=3600, is_strict=False, series=SeriesLimits(slow), others=None,
        parts=PartLimits(slow),
    ).decode(enumerate(message(values).split(b"\n"), 1), told)  # fmt: skip
    ingest = new_ingest(quick)
    ingest.write(message(["9"] * len(values), NOW - 60))
    ingest.write(message(["9"] * len(values), NOW - 120))
    result = ingest.write(message(values))
    assert (result.stored, result.bad_count) == (expected.stored, told.bad_count)
    last = {path: found[2:] for path, found in stored(quick).items() if len(found) > 2}
    points = {
        (*group.levels[column].path, "load"): [value]
        for group, _, first, columns, values in expected.pieces
        for column, value in zip(
            array("q", columns) if columns else range(first, group.width),
            array("d", values), strict=False,
        )
        if not isnan(value)
    }  # fmt: skip
    assert last == points


@settings(max_examples=4 * settings().max_examples)
@given(st.text(st.sampled_from('load,=fxn1 \\"\n\t\r#-.5ei0valuecstrhom'), max_size=120))
def test_no_text_makes_it_raise(text: str) -> None:
    store = new_store()
    ingest = new_ingest(store)
    good = message(["1", "2", "3", "4"])
    for body in (text.encode(), good, good + text.encode(), text.encode() + good):
        ingest.write(body, "fox")
    assert stored(store)["fox", "n1", "core3", "load"][-1] == 4.0


@given(st.binary(max_size=200))
def test_no_bytes_make_it_raise(body: bytes) -> None:
    new_ingest(new_store()).write(body)


def test_an_escaped_blank_is_not_the_end_of_a_key(store: MetricStore, ingest: LineIngest) -> None:
    escaped = f"load,cluster=fox,hostname=a\\ b value=1 {NOW}\n".encode()
    ingest.write(escaped)
    ingest.write(escaped)
    assert ingest.write(f"load,cluster=fox,hostname=a\\ value=1 {NOW}\n".encode()).bad_count == 1
    assert list(stored(store)) == [("fox", "a b", "load")]


@pytest.mark.parametrize("in_pieces", [False, True])
def test_strings_of_events_may_have_several_lines(in_pieces: bool) -> None:
    events: list[Line] = []

    def take(event: Line, _sender: str) -> str:
        events.append(event)
        return ""

    ingest = new_ingest(store := new_store(), others=take)
    content = '{\n  "user": "a\\\\b"\n}'
    escaped = content.replace("\\", "\\\\").replace('"', '\\"')
    body = (
        line("load", 1.0) + f'job,function=start_job event="{escaped}" {NOW}\n'
        'sshd,hostname=n1 log="cut off\n' + line("power", 2.0)
    ).encode()
    message = LineMessage("fox")
    if in_pieces:
        list(ingest.write_pieces(body, message))
    else:
        message = ingest.write(body)
    assert [(event.tags, event.value) for event in events] == [({"function": "start_job"}, content)]
    assert message.bad == []
    assert message.stored == len(stored(store)) == 2
