"""The text format as scripts write it, beside the official parser."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from ccagent.errors import UnparsableError
from ccagent.exporter.textfile import parse_text

TEXT = r"""
# HELP jobs_total Help with \\ and "q" \n x
# TYPE jobs_total counter
jobs_total{a="b",} 1
jobs_total { d="\"\\\n}" , a="c"  }  2e3

# a comment
other NaN
a:b{x=""} -Inf
# TYPE h histogram
h_bucket{le="1"} 1
h_bucket{le="+Inf"} 2
h_sum .5
h_count 2
"""


def test_what_the_official_parser_reads() -> None:
    found = parse_text(TEXT)
    assert found["jobs_total"].samples == {
        'jobs_total{a="b"} ': 1,
        r'jobs_total{a="c",d="\"\\\n}"} ': 2000,
    }
    assert found["jobs_total"].help == 'Help with \\ and "q" \n x'
    official = {
        sample.name: family.type
        for family in text_string_to_metric_families(TEXT)
        for sample in family.samples
    }
    mine = {
        prefix.rstrip().partition("{")[0]: family.kind
        for family in found.values()
        for prefix in family.samples
    }
    assert mine == {
        name: "untyped" if kind == "unknown" else kind for name, kind in official.items()
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a 1", "may be incomplete"),
        ("a 1 123\n", "time stamps"),
        ("a\n", "no number"),
        ("a 0x10\n", "no number"),
        ("a 1_0\n", "no number"),
        ("1a 1\n", "no metric name"),
        ("a{b=1} 1\n", "label"),
        ('a{b="1"c="2"} 1\n', "label"),
        ('a{b="1",b="2"} 1\n', "label"),
        ('a{b="\\x"} 1\n', "label"),
        ('a{b="1" 1\n', "label"),
        ("a 1\na 2\n", "twice"),
        ('a{b="",c="d"} 1\na{c="d"} 2\n', "twice"),
        ("# TYPE a stateset\n", "not a type"),
        ("a 1\n# TYPE a gauge\n", "TYPE after"),
        ("b 1\na 1 1\n", "line 2"),
        ('# TYPE h histogram\nh_bucket{le="x"} 1\n', "line 2: the label le is no number"),
        ('# TYPE h histogram\nh_bucket{le="",a="b"} 1\n', "the label le is no number"),
        ('# TYPE s summary\ns{quantile="0x1p-3"} 1\n', "the label quantile is no number"),
    ],
)
def test_what_is_refused(text: str, problem: str) -> None:
    with pytest.raises(UnparsableError, match=problem):
        parse_text(text)


def test_a_type_needs_no_blank_after_the_hash_sign() -> None:
    """As for node_exporter: without its type a histogram would be three other families."""
    found = parse_text(
        "#HELP h Times\n#TYPE h histogram\nh_sum 1\nh_count 2\n##TYPE h gauge\n#TYPE\n"
    )
    assert {name: (each.kind, each.help, len(each.samples)) for name, each in found.items()} == {
        "h": ("histogram", "Times", 2)
    }


def test_a_line_without_a_type_is_a_comment() -> None:
    found = parse_text("# TYPE a gauge\n# TYPE a\na 1\n# TYPE a\n# TYPE b\t\nb 2\n")
    assert {name: (each.kind, *each.samples.values()) for name, each in found.items()} == {
        "a": ("gauge", 1),
        "b": ("untyped", 2),
    }


@given(st.text(st.sampled_from('ab{}="\\\n ,#1.HELPTY\t'), max_size=60))
def test_no_text_raises_anything_else(text: str) -> None:
    with contextlib.suppress(UnparsableError):
        parse_text(text + "\n")


def test_a_line_full_of_spaces_takes_no_time() -> None:
    """One that is parsed in quadratic time would take minutes."""
    with pytest.raises(UnparsableError):
        parse_text("a" + " " * 500_000 + "{\n")
