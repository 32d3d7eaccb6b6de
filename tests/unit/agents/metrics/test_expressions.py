"""Expressions of metrics: which values are combined, and what is none."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.metrics.expressions import Expressions
from ccagent.agents.metrics.outputs import Value
from ccagent.agents.metrics.readers.base import NODE, Metric, Scope, ScopeType
from ccagent.agents.metrics.settings import ExpressionSettings
from ccagent.errors import ConfigurationError


def metric(kind: ScopeType) -> Metric:
    return Metric(unit="", type=kind, description="", source="")


KNOWN = {
    "mem_used": metric("memoryDomain"), "mem_total": metric("node"), "load": metric("node"),
    "flops": metric("hwthread"), "clock": metric("hwthread"), "power": metric("socket"),
    "job_mem": metric("node"), "job_limit": metric("node"),
}  # fmt: skip
THREADS = [Scope("hwthread", str(number)) for number in range(3)]
SOCKET, DOMAIN = Scope("socket", "0"), Scope("memoryDomain", "0")
JOB, OTHER_JOB = Scope("node", "", "job", "7"), Scope("node", "", "job", "8")

VALUES: list[Value] = [
    ("mem_used", 30.0, DOMAIN),
    ("mem_used", 50.0, NODE),
    ("mem_total", 200.0, NODE),
    ("load", 4.0, NODE),
    *[("flops", float(number + 1), scope) for number, scope in enumerate(THREADS)],
    *[("clock", 10.0 * number, scope) for number, scope in enumerate(THREADS)],
    ("flops", 100.0, SOCKET),
    ("power", 80.0, SOCKET),
    ("job_mem", 6.0, JOB),
    ("job_mem", 2.0, OTHER_JOB),
    ("job_limit", 12.0, JOB),
]


def expressions(*, is_open: bool = False, **texts: str) -> Expressions:
    tables = {name: ExpressionSettings(expression=text) for name, text in texts.items()}
    return Expressions(tables, KNOWN, is_open=is_open)


def values(text: str, values: list[Value] = VALUES) -> dict[Scope, float]:
    """Return what an expression is, by place."""
    found = expressions(x=text).values(values)
    assert {name for name, _, _ in found} <= {"x"}
    return {scope: number for _, number, scope in found}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("mem_used / mem_total * 100", 25.0),
        ("1 + 2 * 3", 7.0),
        ("(1 + 2) * 3", 9.0),
        ("8 - 2 - 1", 5.0),
        ("-load + +1.5e1", 11.0),
        (" load\n  / 2 ", 2.0),
        ("abs(-load)", 4.0),
        ("max(load, 5, 3)", 5.0),
        ("min(load, 5)", 4.0),
        ("sum(load, 1, 1)", 6.0),
        ("mean(load, 2)", 3.0),
        ("sum(flops)", 6.0),
        ("mean(clock)", 10.0),
        ("min(clock)", 0.0),
        ("max(clock) - min(clock)", 20.0),
        ("sum(flops * clock)", 80.0),
        ("sum(flops) / load", 1.5),
        ("sum(load)", 4.0),
        ("mean(mem_used)", 30.0),
        ("sum(job_mem)", 8.0),
        ("sum(7)", 7.0),
        ("0x10", 16.0),
    ],
)
def test_a_value_of_the_node(text: str, value: float) -> None:
    assert values(text) == {NODE: pytest.approx(value)}


def test_values_of_the_same_place_are_combined() -> None:
    assert values("flops * clock") == {THREADS[0]: 0.0, THREADS[1]: 20.0, THREADS[2]: 60.0}
    assert values("mem_used * 2") == {DOMAIN: 60.0, NODE: 100.0}
    assert values("job_mem / job_limit") == {JOB: 0.5}
    assert values("flops / power") == {SOCKET: 1.25}


def test_a_single_value_goes_with_any_place() -> None:
    found = values("flops / sum(flops) * sum(load)")
    assert [found[scope] for scope in THREADS] == [pytest.approx(n * 4 / 6) for n in (1, 2, 3)]
    assert values("max(flops, mean(clock) / 5)") == {
        THREADS[0]: 2.0, THREADS[1]: 2.0, THREADS[2]: 3.0, SOCKET: 100.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    "text", ["flops / load", "load / 0", "1 / 0", "sum(flops) / (load - 4)", "job_limit * load"]
)
def test_what_lacks_an_operand_or_is_divided_by_zero_is_none(text: str) -> None:
    assert values(text) == {}


def test_a_division_by_zero_costs_its_place() -> None:
    assert values("flops / clock") == {THREADS[1]: 0.2, THREADS[2]: 0.15}


@pytest.mark.parametrize("text", ["sum(power)", "mean(power)", "power + 1", "abs(power)"])
def test_what_is_not_told_has_no_value(text: str) -> None:
    assert values(text, [("load", 1.0, NODE)]) == {}


def test_what_is_infinite_is_none() -> None:
    assert values("load * 1e308 * 1e308 - load * 1e308 * 1e308") == {}
    assert values("mean(1e308, 1e308)") == {}


def test_the_value_of_the_node_comes_last() -> None:
    told: list[Value] = [("load", 1.0, NODE), ("load", 2.0, JOB)]
    assert expressions(x="load * 2").values(told) == [("x", 4.0, JOB), ("x", 2.0, NODE)]


def test_one_may_name_those_before_it() -> None:
    found = expressions(half="load / 2", quarter="half / 2").values(VALUES)
    assert found == [("half", 2.0, NODE), ("quarter", 1.0, NODE)]
    with pytest.raises(ConfigurationError, match=r"a: expression: column 1: 'b' is no metric"):
        expressions(a="b", b="load")


def test_names_may_be_of_commands_and_files() -> None:
    both = expressions(is_open=True, x="jobs + load")
    assert both.values([("load", 1.0, NODE)]) == []
    assert both.values([("load", 1.0, NODE), ("jobs", 2.0, NODE)]) == [("x", 3.0, NODE)]
    assert both.operands == {"x": {"jobs", "load"}}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("flops * clock", "hwthread"),
        ("flops / sum(power)", "hwthread"),
        ("sum(flops) / sum(power)", "node"),
        ("mem_used / mem_total", "node"),
        ("mem_used * 1", "memoryDomain"),
        ("max(flops, clock)", "hwthread"),
        ("1", "node"),
    ],
)
def test_the_type_is_that_of_the_operands(text: str, kind: ScopeType) -> None:
    assert expressions(x=text).metrics["x"].type == kind


def test_a_metric_has_what_its_table_says() -> None:
    table = ExpressionSettings(expression="load\n/ 2", unit="W", aggregation="max")
    found = Expressions({"x": table}, KNOWN, is_open=False).metrics["x"]
    assert (found.unit, found.aggregation, found.source) == ("W", "max", "expression load / 2")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "column 1: "),
        ("load +", "column "),
        ("(load", "column "),
        ("load)", "column 5: unmatched ')'"),
        ("load 5", "column "),
        ("  load + lod", "column 10: 'lod'"),
        ("load + lod", "column 8: 'lod' is no metric; did you mean 'load'?"),
        ("load ** 2", "column 1: only numbers, names of metrics"),
        ("load % 2", "column 1: only numbers"),
        ("load // 2", "column 1: only numbers"),
        ("load if load else 1", "column 1: only numbers"),
        ("1 + (load < 2)", "column 6: only numbers"),
        ("not load", "column 1: only numbers"),
        ("load.real", "column 1: only numbers"),
        ("load[0]", "column 1: only numbers"),
        ("load, load", "column 1: only numbers"),
        ("lambda: 1", "column 1: only numbers"),
        ("(x := 1)", "column 2: only numbers"),
        ("'load'", "column 1: only numbers"),
        ("f'{load}'", "column "),
        ("True", "column 1: only numbers"),
        ("1j", "column 1: only numbers"),
        ("...", "column 1: only numbers"),
        ("__import__('os')", "column 1: __import__ of 1 operands"),
        ("abs.__class__(load)", "column 1: only numbers"),
        ("sum()", "column 1: only numbers"),
        ("sum(*load)", "column 5: only numbers"),
        ("sum(load, start=1)", "column 1: only numbers"),
        ("abs(load, load)", "column 1: abs of 2 operands"),
        ("median(load)", "column 1: median of 1 operands"),
        ("1e999", "column 1: a number that is too large"),
        ("1" + "0" * 400, "column 1: a number that is too large"),
        ("-" * 60 + "1", "more than 50 operations in one another"),
        ("load +" * 60 + "1", "more than 50 operations in one another"),
        ("(" * 400 + "1" + ")" * 400, "too many"),
        ("load + löad", "only ASCII"),
        ("load\0", "only ASCII"),
        ("1 +" * 500 + "1", "only ASCII, without control characters, of 1000 at most"),
        ("1) + (1", "column 2: unmatched ')'"),
        ("1; 2", "column 2: "),
        ("x = 1", "column "),
    ],
)
def test_what_is_no_expression_is_said(text: str, reason: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        expressions(x=text)
    said = str(caught.value)
    assert said.startswith("agents.metrics.expressions.x: expression: ")
    assert reason in said
    assert said.isprintable()


def test_a_name_is_given_once() -> None:
    with pytest.raises(
        ConfigurationError, match=r"agents.metrics.expressions.load: there is a metric"
    ):
        expressions(load="1")


@given(st.text("loadsumin(), +-*/.1e<>=:[]'#\\\n", max_size=80))
def test_any_text_is_an_expression_or_an_error(text: str) -> None:
    try:
        found = expressions(x=text).values(VALUES)
    except ConfigurationError:
        return
    assert all(math.isfinite(number) for _, number, _ in found)


NUMBERS = st.floats(-1e6, 1e6).map(lambda number: round(number, 3))
SUMS = st.recursive(
    NUMBERS.map(repr),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(
        lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
    ),
    max_leaves=12,
)


@given(SUMS)
def test_numbers_are_reckoned_as_python_does(text: str) -> None:
    try:
        expected = eval(text)
    except ZeroDivisionError:
        expected = math.nan
    found = values(text)
    assert found == ({NODE: expected} if math.isfinite(expected) else {})


def test_a_number_that_is_too_large_has_no_value() -> None:
    bytes_used: list[Value] = [("mem_used", 2**64 - 1, NODE)]
    assert values(" * ".join(["mem_used"] * 20), bytes_used) == {}
