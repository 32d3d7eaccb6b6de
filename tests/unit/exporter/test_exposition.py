"""The two formats, as the official parsers read them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.exporter.exposition import (
    Family,
    SampleEncoder,
    WrittenFamily,
    counter,
    gauge,
    join_openmetrics,
    join_text,
    name_family,
    untyped,
)
from ccagent.exporter.textfile import parse_text
from tests.support.exposition import parse

NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.just(math.inf), st.just(-math.inf)
)
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=20)


def documents(family: Family, rows: list[tuple[tuple[str, ...], float]]) -> tuple[str, str]:
    blocks = SampleEncoder().encode([(family, rows)])
    return join_text(blocks).decode(), join_openmetrics(blocks).decode()


@given(st.dictionaries(st.tuples(TEXTS, TEXTS), NUMBERS, min_size=1, max_size=5), TEXTS)
def test_any_labels_and_numbers_come_back(rows: dict[tuple[str, str], float], text: str) -> None:
    family = gauge("some_bytes", text or "x", "first", "second")
    for form, document in zip(
        ("text", "openmetrics"), documents(family, [*rows.items()]), strict=True
    ):
        found = {labels: known.value for (_, labels), known in parse(document, form).items()}
        assert found == {
            frozenset({("first", a), ("second", b)}): float(v) for (a, b), v in rows.items()
        }


@given(st.text(max_size=30))
def test_no_text_of_the_kernel_spoils_a_document(value: str) -> None:
    for form, document in zip(
        ("text", "openmetrics"),
        documents(gauge("a", "b", "name"), [((value,), 1), (("other",), 2)]),
        strict=True,
    ):
        assert len(parse(document, form)) == len({value, "other"})
        assert document.count("\n") == 2 + len({value, "other"}) + (form == "openmetrics")


def test_not_a_number_and_infinity() -> None:
    text, openmetrics = documents(gauge("a", "b", "n"), [(("x",), math.nan), (("y",), -math.inf)])
    assert 'a{n="x"} NaN\na{n="y"} -Inf\n' in text
    assert 'a{n="x"} NaN\na{n="y"} -Inf\n# EOF\n' in openmetrics


def test_a_counter_has_total_in_the_samples_and_in_the_type_of_text_alone() -> None:
    text, openmetrics = documents(counter("a_seconds_total", "b"), [((), 1.5)])
    assert text == "# HELP a_seconds_total b\n# TYPE a_seconds_total counter\na_seconds_total 1.5\n"
    assert openmetrics == (
        "# TYPE a_seconds counter\n# UNIT a_seconds seconds\n# HELP a_seconds b\n"
        "a_seconds_total 1.5\n# EOF\n"
    )


def test_a_counter_without_total_keeps_its_name_in_openmetrics() -> None:
    text, openmetrics = documents(counter("cgroup_cpu_user_seconds", "b"), [((), 2)])
    assert "# TYPE cgroup_cpu_user_seconds counter" in text
    assert "# TYPE cgroup_cpu_user_seconds unknown" in openmetrics
    assert "\ncgroup_cpu_user_seconds 2\n" in openmetrics


def test_times_of_creation_are_samples_of_their_family_in_openmetrics() -> None:
    """Python's library writes them as gauges, which strict readers of both families refuse."""
    text = (
        '# TYPE a_total counter\na_total{file="1"} 1\na_total{file="2"} 2\n'
        '# TYPE a_created gauge\na_created{file="1"} 3\na_created{file="2"} 4\n'
        '# TYPE h histogram\nh_bucket{le="1.0",z="a"} 1\nh_bucket{le="+Inf",z="a"} 2\n'
        'h_count{z="a"} 2\nh_sum{z="a"} 2\nh_created{z="a"} 5\n'
        "# TYPE b gauge\nb 1\n# TYPE b_total counter\nb_total 1\n# TYPE b_created gauge\n"
        "b_created 6\n"
    )
    families = parse_text(text).items()
    blocks = SampleEncoder().encode(
        (WrittenFamily(name, each.kind, each.help), [((p,), n) for p, n in each.samples.items()])
        for name, each in families
    )
    values = {series: known.value for series, known in parse(text).items()}
    document = join_openmetrics(blocks).decode()
    assert {series: known.value for series, known in parse(document, "openmetrics").items()} == (
        values
    )
    assert 'a_total{file="1"} 1\na_created{file="1"} 3\na_total{file="2"} 2\n' in document
    assert "# TYPE b_created gauge\n" in document


def test_an_untyped_family_is_unknown_in_openmetrics() -> None:
    text, openmetrics = documents(untyped("a", "b"), [((), 2)])
    assert "# TYPE a untyped" in text
    assert "# TYPE a unknown" in openmetrics


def test_labels_that_are_written_alike_are_one_series() -> None:
    for document in documents(
        gauge("a", "b", "n"), [((c,), 1) for c in ("\udcff", "\udcfe", "\x01")]
    ):
        assert document.count("\na{") == 1


def test_a_label_may_hold_any_surrogate() -> None:
    assert 'a{n="\ufffd"} 1\n' in documents(gauge("a", "b", "n"), [(("\ud800",), 1)])[0]


def test_of_the_same_labels_the_last_counts() -> None:
    assert "a 2\n" in documents(gauge("a", "b"), [((), 1), ((), 2)])[0]


def test_a_family_without_samples_is_left_out() -> None:
    assert documents(gauge("a", "b"), []) == ("", "# EOF\n")


def test_beginnings_of_lines_are_forgotten_with_their_jobs() -> None:
    encoder = SampleEncoder()
    family = gauge("a", "b", "jobid")
    for start in range(0, 2000, 100):
        encoder.encode([(family, [((str(job),), 1) for job in range(start, start + 100)])])
    assert "1899" not in repr(vars(encoder))


def test_lines_follow_their_labels_from_scrape_to_scrape() -> None:
    encoder = SampleEncoder()
    family = gauge("a", "b", "n")
    scrapes: list[list[tuple[str, float]]] = [
        [("x", 1)],
        [("x", 2), ("%r", 3)],
        [("%r", 4), ("\n", 5)],
        [],
        [("\n", math.nan)],
    ]
    documents = [
        join_text(encoder.encode([(family, [((label,), value) for label, value in scrape])]))
        for scrape in scrapes
    ]
    assert [document.decode().splitlines()[2:] for document in documents] == [
        ['a{n="x"} 1'],
        ['a{n="x"} 2', 'a{n="%r"} 3'],
        ['a{n="%r"} 4', 'a{n="\\n"} 5'],
        [],
        ['a{n="\\n"} NaN'],
    ]


def test_a_family_may_come_in_parts() -> None:
    encoder = SampleEncoder()
    family = gauge("a", "b", "n")
    for _ in range(2):
        parts = [(family, [((name,), 1)]) for name in "xy"]
        assert encoder.encode(parts) == [(family, 'a{n="x"} 1\na{n="y"} 1\n')]


def test_only_what_has_changed_is_written_again() -> None:
    encoder = SampleEncoder()
    same, other = gauge("same", "b", "n"), gauge("other", "b", "n")
    for number in (1, 2.5, math.nan, math.inf, 2.5, 1, 1):
        blocks = encoder.encode([(same, [(("x",), 7)]), (other, [(("y",), number)])])
        shown = {math.inf: "+Inf"}.get(number, "NaN" if math.isnan(number) else f"{number!r}")
        assert blocks == [(same, 'same{n="x"} 7\n'), (other, f'other{{n="y"}} {shown}\n')]


@pytest.mark.parametrize("name", ["a b", "1a", "a-b", "", "a:b", "ä"])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(ValueError, match="letters, digits"):
        gauge(name, "x")
    with pytest.raises(ValueError, match="letters, digits"):
        gauge("a", "x", name)


def test_a_name_of_the_kernel_that_can_be_none() -> None:
    family = name_family("gauge", "node_memory_MemFree_bytes", "of MemFree")
    assert family is not None
    assert (family.name, family.help) == ("node_memory_MemFree_bytes", "of MemFree")
    assert name_family("gauge", "node_memory_a-b", "of a-b") is None


def test_of_many_families_only_those_with_new_values_change() -> None:
    encoder = SampleEncoder()
    families = [gauge(f"a{number}", "b", "n") for number in range(100)]
    for changed in (0, 50, 99):
        rows = [
            (
                family,
                [((f"%{n}",), math.nan if number == changed else n) for n in range(number % 4)],
            )
            for number, family in enumerate(families)
        ]
        found = encoder.encode(rows)
        assert found == [block for row in rows for block in SampleEncoder().encode([row])]
        assert sum(lines.count("NaN") for _, lines in found) == changed % 4
