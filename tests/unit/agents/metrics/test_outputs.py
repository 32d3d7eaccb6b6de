"""From readings to values: rates, time steps, a clock that jumps, names and units."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.metrics.outputs import ClockGuard, Downsampler, combine_values, make_outputs
from ccagent.agents.metrics.presets import find_factor
from ccagent.agents.metrics.readers.base import NODE, Count, Metric, Scope
from ccagent.agents.metrics.settings import MetricsSettings
from ccagent.config.files import convert
from ccagent.errors import ConfigurationError
from ccagent.machine.counters import Rates

METRICS = {
    "net": Metric(unit="B/s", type="node", description="", source=""),
    "power": Metric(unit="W", type="socket", description="", source="", scale=1e-6),
    "user": Metric(unit="%", type="hwthread", description="", source="", aggregation="mean"),
    "mem_bw": Metric(unit="B/s", type="socket", description="", source=""),
    "rare": Metric(unit="1/s", type="node", description="", source="", is_default=False),
}
SOCKET = Scope("socket", "0")


def settings(**table: object) -> MetricsSettings:
    return convert(dict(table), MetricsSettings, "agents.metrics", place="x.toml")


class TestRates:
    def test_a_first_reading_has_none(self) -> None:
        assert list(Rates[Scope]().of([Count("net", 5)], METRICS, 100.0)) == []

    def test_they_are_over_the_time_that_passed(self) -> None:
        rates: Rates[Scope] = Rates()
        rates.of([Count("net", 1000), Count("power", 0, SOCKET)], METRICS, 100.0)
        found = rates.of([Count("net", 4000), Count("power", 60_000_000, SOCKET)], METRICS, 130.0)
        assert found == [("net", 100.0, NODE), ("power", 2.0, SOCKET)]

    def test_a_counter_that_wraps_goes_on(self) -> None:
        rates: Rates[Scope] = Rates()
        rates.of([Count("net", 2**32 - 10, NODE, 2**32 - 1)], METRICS, 0.0)
        assert rates.of([Count("net", 10, NODE, 2**32 - 1)], METRICS, 1.0) == [("net", 20.0, NODE)]

    def test_one_that_begins_anew_has_grown_by_what_it_is(self) -> None:
        rates: Rates[Scope] = Rates()
        rates.of([Count("net", 1000)], METRICS, 0.0)
        assert rates.of([Count("net", 10)], METRICS, 1.0) == [("net", 10.0, NODE)]

    def test_one_that_falls_a_little_has_not_grown(self) -> None:
        # As a sum over the disks of a job does when one of them goes.
        rates: Rates[Scope] = Rates()
        rates.of([Count("net", 10_000)], METRICS, 0.0)
        assert rates.of([Count("net", 9_000)], METRICS, 1.0) == [("net", 0.0, NODE)]
        assert rates.of([Count("net", 9_500)], METRICS, 2.0) == [("net", 500.0, NODE)]

    def test_one_that_was_away_begins_again(self) -> None:
        rates: Rates[Scope] = Rates()
        rates.of([Count("net", 10)], METRICS, 0.0)
        rates.of([], METRICS, 1.0)
        assert rates.of([Count("net", 1000)], METRICS, 2.0) == []

    @given(
        st.lists(st.tuples(st.integers(0, 2**64), st.floats(0, 1e9)), min_size=2),
        st.sampled_from([0, 2**32 - 1, 2**64 - 1]),
    )
    def test_they_are_never_negative(self, readings: list[tuple[int, float]], wraps: int) -> None:
        rates: Rates[Scope] = Rates()
        for value, moment in readings:
            found = rates.of([Count("net", value, NODE, wraps)], METRICS, moment)
            assert all(rate >= 0 for _, rate, _ in found)


class TestSteps:
    def test_without_a_step_values_go_on_as_they_come(self) -> None:
        assert list(Downsampler(0).add(7.5, [("net", 1.0, NODE)])) == [(7.5, [("net", 1.0, NODE)])]

    def test_values_of_a_step_are_one(self) -> None:
        steps = Downsampler(60)
        for moment, value in ((0, 1.0), (20, 2.0), (40, 6.0)):
            assert list(steps.add(moment, [("net", value, NODE)])) == []
        assert list(steps.add(60, [("net", 9.0, NODE)])) == [(60.0, [("net", 3.0, NODE)])]
        assert list(steps.add(125, [])) == [(120.0, [("net", 9.0, NODE)])]

    def test_parts_are_kept_apart(self) -> None:
        steps = Downsampler(10)
        list(steps.add(1, [("net", 1.0, NODE), ("net", 5.0, SOCKET)]))
        ((_, values),) = steps.add(11, [])
        assert values == [("net", 1.0, NODE), ("net", 5.0, SOCKET)]


class TestClock:
    def test_one_that_goes_on_is_right(self) -> None:
        guard = ClockGuard()
        assert all(guard.accepts(1000.0 + i * 10 + i * 0.1, i * 10.0) for i in range(100))

    @pytest.mark.parametrize("jump", [-3600.0, 3600.0, 1e9])
    def test_a_jump_does_not_get_through_until_it_stays(self, jump: float) -> None:
        guard = ClockGuard()
        assert guard.accepts(1000.0, 0.0)
        accepted = [guard.accepts(1000.0 + 10 * i + jump, 10.0 * i) for i in range(1, 6)]
        assert accepted == [False, False, True, True, True]

    def test_a_moment_of_nonsense_changes_nothing(self) -> None:
        guard = ClockGuard()
        assert guard.accepts(1000.0, 0.0)
        assert not guard.accepts(9e9, 10.0)
        assert guard.accepts(1020.0, 20.0)
        assert not guard.accepts(1e5, 30.0)
        assert not guard.accepts(2e5, 40.0)


class TestForms:
    def test_presets_have_their_units(self) -> None:
        found = make_outputs(METRICS, settings())
        assert (found["net"].unit, found["net"].factor) == ("MB/s", 1e-6)
        assert (found["mem_bw"].unit, found["mem_bw"].factor) == ("GB/s", 1e-9)
        spec = make_outputs(METRICS, settings(preset="spec"))
        assert (spec["mem_bw"].unit, spec["mem_bw"].factor) == ("MByte/s", 1e-6)
        base = make_outputs(METRICS, settings(preset="base"))
        assert (base["net"].unit, base["net"].factor) == ("B/s", 1.0)

    def test_what_is_seldom_wanted_is_sent_on_demand(self) -> None:
        assert "rare" not in make_outputs(METRICS, settings())
        assert "rare" in make_outputs(METRICS, settings(include=["rare"]))
        assert "net" not in make_outputs(METRICS, settings(exclude=["net"]))
        assert "net" not in make_outputs(METRICS, settings(metrics={"net": {"drop": True}}))

    def test_a_table_renames_scales_and_tags(self) -> None:
        table = {"name": "traffic", "unit": "GB/s", "scale": 8.0, "tags": {"rack": "7"}}
        sent = make_outputs(METRICS, settings(metrics={"net": table}))["net"]
        assert (sent.name, sent.unit, sent.tags) == ("traffic", "GB/s", {"rack": "7"})
        assert sent.factor == pytest.approx(8e-9)

    @pytest.mark.parametrize(
        ("aggregation", "value"), [("", 3.0), ("sum", 6.0), ("mean", 3.0), ("max", 5.0)]
    )
    def test_parts_become_one_value_of_the_node(self, aggregation: str, value: float) -> None:
        table = {"of-node": True, "aggregation": aggregation}
        sent = make_outputs(METRICS, settings(metrics={"user": table}))
        values = [("user", number, Scope("hwthread", f"{number}")) for number in (1.0, 5.0)]
        assert combine_values(values, sent) == [("user", value, NODE)]
        told = ("user", 99.0, NODE)
        assert combine_values([*values, told], sent) == [told]

    @pytest.mark.parametrize(
        ("table", "reason"),
        [
            ({"include": ["nett"]}, "agents.metrics.include: 'nett' is no metric of these readers"),
            ({"metrics": {"net": {"unit": "W"}}}, "'B/s' cannot be sent as 'W'"),
        ],
    )
    def test_what_is_unknown_is_said(self, table: dict[str, object], reason: str) -> None:
        with pytest.raises(ConfigurationError, match=reason):
            make_outputs(METRICS, settings(**table))

    @pytest.mark.parametrize(
        ("table", "reason"),
        [
            ({"readers": ["cpus"]}, "'cpus' is unknown; did you mean 'cpu'?"),
            ({"metrics": {"net": {"name": "a b"}}}, "name 'a b'"),
            ({"preset": "ganglia"}, "preset"),
        ],
    )
    def test_a_bad_configuration_is_said(self, table: dict[str, object], reason: str) -> None:
        with pytest.raises(ConfigurationError) as caught:
            settings(**table)
        assert reason in str(caught.value)

    def test_units_that_measure_something_else_are_refused(self) -> None:
        assert find_factor("B", "GiB") == 1 / 1024**3
        with pytest.raises(ValueError, match="there are"):
            find_factor("B", "MHz")
