"""LNet: the text of lnetctl, and the kernel's one line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.lustre.lnet import (
    KERNEL_STATISTICS,
    NETWORKS,
    STATISTICS,
    Block,
    parse_indented,
)
from ccagent.agents.lustre.metric import Parameter, parse_parameters
from ccagent.agents.lustre.statistics import GROUPS, points_of
from tests.support.paths import DATA

RECORDED = DATA / "lustre" / "params"
NODE = {"cluster": "fox", "hostname": "oss1", "type": "node"}
KERNEL = b"0 39 2 1110532 1110512 0 11 261865376 254091008 0 4832\n"
Values = dict[str, float]


def values_of(*parameters: tuple[str, bytes]) -> tuple[dict[str, Values], list[str]]:
    """The values by network, which is empty for the node."""
    errors: list[str] = []
    given = [Parameter(name, value) for name, value in parameters]
    values: dict[str, Values] = {}
    for point in points_of(given, ["lnet"], NODE, 60.0, errors):
        assert point.tags.get("stype", "network") == "network"
        values.setdefault(point.tags.get("stype-id", ""), {})[point.name] = point.value
    return values, errors


def test_statistics() -> None:
    content = (RECORDED / "lnetctl_stats_show.txt").read_bytes()
    values, errors = values_of((" ".join(STATISTICS), content))
    assert errors == []
    lines = [line.split(":") for line in content.decode().splitlines()[1:]]
    assert len(lines) == 24
    assert values == {"": {f"lustre_lnet_{key.strip()}": int(count) for key, count in lines}}
    assert values[""]["lustre_lnet_send_length"] == 261865376


def test_statistics_of_the_kernel_have_the_same_names() -> None:
    values, errors = values_of((KERNEL_STATISTICS, KERNEL))
    assert errors == []
    assert values[""] == {
        "lustre_lnet_msgs_alloc": 0,
        "lustre_lnet_msgs_max": 39,
        "lustre_lnet_errors": 2,
        "lustre_lnet_send_count": 1110532,
        "lustre_lnet_recv_count": 1110512,
        "lustre_lnet_route_count": 0,
        "lustre_lnet_drop_count": 11,
        "lustre_lnet_send_length": 261865376,
        "lustre_lnet_recv_length": 254091008,
        "lustre_lnet_route_length": 0,
        "lustre_lnet_drop_length": 4832,
    }


def test_lctl_gives_the_line_of_the_kernel_as_the_parameter_stats() -> None:
    ((name, value),) = parse_parameters(b"stats=" + KERNEL)
    assert values_of((name, value)) == values_of((KERNEL_STATISTICS, KERNEL))


def test_statistics_from_two_sources_do_not_add_up() -> None:
    content = (RECORDED / "lnetctl_stats_show.txt").read_bytes()
    both, errors = values_of((" ".join(STATISTICS), content), (KERNEL_STATISTICS, KERNEL))
    assert (both, errors) == values_of((" ".join(STATISTICS), content))


def test_networks() -> None:
    content = (RECORDED / "lnetctl_net_show_v4.txt").read_bytes()
    values, errors = values_of((" ".join(NETWORKS), content))
    assert errors == []
    assert sorted(values) == ["", "lo", "tcp"]
    assert values["tcp"] == {
        "lustre_lnet_network_interfaces": 2,
        "lustre_lnet_network_interfaces_up": 2,
        "lustre_lnet_network_send_count": 464970 + 464886,
        "lustre_lnet_network_recv_count": 464963 + 464877,
        "lustre_lnet_network_drop_count": 7,
        "lustre_lnet_network_sent_put": 340418 + 340879,
        "lustre_lnet_network_sent_get": 124552 + 124007,
        "lustre_lnet_network_sent_reply": 0,
        "lustre_lnet_network_sent_ack": 0,
        "lustre_lnet_network_sent_hello": 0,
        "lustre_lnet_network_received_put": 340401 + 340858,
        "lustre_lnet_network_received_get": 63529 + 62013,
        "lustre_lnet_network_received_reply": 61023 + 61994,
        "lustre_lnet_network_received_ack": 22,
        "lustre_lnet_network_received_hello": 0,
        "lustre_lnet_network_dropped_put": 7,
        "lustre_lnet_network_dropped_get": 0,
        "lustre_lnet_network_dropped_reply": 0,
        "lustre_lnet_network_dropped_ack": 0,
        "lustre_lnet_network_dropped_hello": 0,
        "lustre_lnet_network_health_fatal_error": 0,
        "lustre_lnet_network_health_value": 1000,
        "lustre_lnet_network_health_interrupts": 0,
        "lustre_lnet_network_health_dropped": 0,
        "lustre_lnet_network_health_aborted": 0,
        "lustre_lnet_network_health_no_route": 0,
        "lustre_lnet_network_health_timeouts": 0,
        "lustre_lnet_network_health_error": 0,
    }
    assert values["lo"]["lustre_lnet_network_send_count"] == 180076
    assert values[""]["lustre_lnet_network_send_count"] == 180076 + 464970 + 464886
    assert values[""]["lustre_lnet_network_interfaces"] == 3


def test_the_worst_interface_gives_the_health_of_a_network_and_the_node() -> None:
    content = (RECORDED / "lnetctl_net_show_v4.txt").read_bytes()
    head, _, tail = content.rpartition(b"health value: 1000")
    content = head + b"health value: 850" + tail
    head, _, tail = content.rpartition(b"status: up")
    values, _ = values_of((" ".join(NETWORKS), head + b"status: down" + tail))
    for place in ("tcp", ""):
        assert values[place]["lustre_lnet_network_health_value"] == 850
    assert values["tcp"]["lustre_lnet_network_interfaces_up"] == 1


def test_the_time_of_the_next_ping_is_no_event() -> None:
    text = (
        b"net:\n-     net type: tcp\n      local NI(s):\n      -     nid: 10.0.0.1@tcp\n"
        b"            health stats:\n                  ping_count: 2\n"
        b"                  next_ping: 81234\n"
    )
    values, errors = values_of((" ".join(NETWORKS), text))
    assert errors == []
    assert values["tcp"]["lustre_lnet_network_health_ping_count"] == 2
    assert "lustre_lnet_network_health_next_ping" not in values["tcp"]


def test_the_loopback_has_no_health() -> None:
    content = (RECORDED / "lnetctl_net_show_v4.txt").read_bytes()
    content = content.replace(b"health value: 1000", b"health value: 0", 1)
    values, errors = values_of((" ".join(NETWORKS), content))
    assert errors == []
    assert values[""]["lustre_lnet_network_health_value"] == 1000
    assert "lustre_lnet_network_health_value" not in values["lo"]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        (STATISTICS, b"", "no statistics in "),
        (STATISTICS, b"show:\n    - statistics:\n          errno: -1\n", "no statistics in "),
        (STATISTICS, b"statistics:\n    errors: many\n", "errors: many is no number"),
        (STATISTICS, b"statistics:\n    err,ors: 1\n", "err,ors is no counter"),
        (NETWORKS, b"show:\n    - net:\n          errno: -19\n", "no networks in "),
        (NETWORKS, b"net:\n    - net type: t,p\n", "t,p is no network"),
        (NETWORKS, b"net:\n    - nothing: 1\n", " is no network"),
    ],
)
def test_what_is_not_understood_gets_into_errors(
    name: tuple[str, ...], content: bytes, sentence: str
) -> None:
    values, (error,) = values_of((" ".join(name), content))
    assert values == {}
    assert error.startswith(" ".join(name) + ": ")
    assert sentence in error


@pytest.mark.parametrize("content", [b"", b"1 2 3", KERNEL + b"4", b"lnet"])
def test_a_line_of_the_kernel_has_eleven_numbers(content: bytes) -> None:
    values, errors = values_of((KERNEL_STATISTICS, content))
    assert values == {}
    assert [error.endswith(" are not 11 numbers") for error in errors] == [True]


def test_the_group_says_what_to_run_and_to_read() -> None:
    group = GROUPS["lnet"]
    named = [" ".join(program) for program in group.programs] + list(group.files + group.patterns)
    assert [name for name in named if not group.names.fullmatch(name)] == []


def shape(block: Block) -> dict[str, object]:
    return {
        **block.fields,
        **{key: [shape(one) for one in below] for key, below in block.blocks.items()},
    }


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", {}),
        (b"a: 1\nb: 2\n", {"a": "1", "b": "2"}),
        (b"a:\n  b: 1\n  c:\n    d: 2\ne: 3\n", {"a": [{"b": "1", "c": [{"d": "2"}]}], "e": "3"}),
        (b"a:\n  - b: 1\n    c: 2\n  - b: 3\n", {"a": [{"b": "1", "c": "2"}, {"b": "3"}]}),
        (b"a:\n- b: 1\n- b: 2\n", {"a": [{"b": "1"}, {"b": "2"}]}),
        (
            b"a:\n  - b:\n      - c: 1\n      - c: 2\n  - b: 3\nd: 4\n",
            {"a": [{"b": [{"c": "1"}, {"c": "2"}]}, {"b": "3"}], "d": "4"},
        ),
        (b"nid: 10.0.0.1@tcp:1\n", {"nid": "10.0.0.1@tcp:1"}),
        (b"no colon\n\n  a: 1\nb: 2\n", {"": [{"a": "1"}], "b": "2"}),
        (b"a:\n      b: 1\n   c: 2\n", {"a": [{"b": "1"}, {"c": "2"}]}),
    ],
)  # fmt: skip
def test_indentation_makes_blocks(content: bytes, expected: dict[str, object]) -> None:
    assert shape(parse_indented(content)) == expected


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans())))
def test_however_lines_are_indented_each_is_somewhere(lines: list[tuple[int, bool]]) -> None:
    def values(block: Block) -> list[str]:
        below = [one for blocks in block.blocks.values() for one in blocks]
        return [*block.fields.values(), *(value for one in below for value in values(one))]

    content = "".join(
        f"{' ' * depth}{'- ' if is_item else ''}key {i}: {i}\n"
        for i, (depth, is_item) in enumerate(lines)
    )
    assert sorted(values(parse_indented(content.encode())), key=int) == [
        str(i) for i in range(len(lines))
    ]


@given(st.binary())
def test_no_text_raises(content: bytes) -> None:
    parse_indented(content)
