"""Settings from tables: what is accepted, and how a mistake is named."""

from __future__ import annotations

import tomllib
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from ccagent.agents.base import agent_class
from ccagent.config.defaults import defaults
from ccagent.config.duration import Cadence, Duration
from ccagent.config.files import convert
from ccagent.config.settings import Settings, join_key
from ccagent.errors import ConfigurationError, nearest


class Example(Settings, frozen=True, kw_only=True):
    """Keys of every type there is."""

    output_file: str = "-"
    rollup: bool = False
    depth: Annotated[int, Meta(ge=1)] = 1
    factor: float = 1.0
    every: Cadence | None = None
    time_limit: Duration = Duration("10s")
    names: list[str] = []
    form: Literal["raw", "wrapped"] = "raw"


class Needy(Settings, frozen=True, kw_only=True):
    """A key without a default."""

    url: str


def refusal(table: object, settings: type[Settings] = Example) -> str:
    with pytest.raises(ConfigurationError) as caught:
        convert(table, settings, "agents.example", place="/etc/x.toml")
    prefix = "/etc/x.toml: agents.example"
    text = str(caught.value)
    assert text.startswith(prefix)
    return text.removeprefix(prefix)


def test_keys_are_in_kebab_case_and_have_defaults() -> None:
    table = {"output-file": "a", "rollup": True, "time-limit": "5m", "every": "1h", "factor": 2}
    assert convert(table, Example, "x", place="y") == Example(
        output_file="a", rollup=True, time_limit=Duration("5m"), every=Cadence("1h"), factor=2.0
    )
    assert convert({}, Example, "x", place="y") == Example()


def test_settings_dont_change() -> None:
    settings = Example()
    with pytest.raises(AttributeError):
        settings.depth = 2  # type: ignore[misc]
    assert msgspec.structs.replace(settings, depth=2).depth == 2


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("outputfile", "did you mean 'output-file'?"),
        ("output_file", "did you mean 'output-file'?"),
        ("rolup", "did you mean 'rollup'?"),
        ("timelimit", "did you mean 'time-limit'?"),
        (
            "zzz",
            "there are depth, every, factor, form, names, output-file, rollup, time-limit",
        ),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest(key: str, said: str) -> None:
    assert refusal({key: 1}) == f".{key}: unknown key; {said}"


def test_an_unknown_key_of_a_table_within_is_named_with_the_nearest() -> None:
    class Outer(Settings, frozen=True, kw_only=True):
        one: Example = Example()
        named: dict[str, Example] = {}

    said = ".rolup: unknown key; did you mean 'rollup'?"
    assert refusal({"one": {"rolup": 1}}, Outer) == f".one{said}"
    assert refusal({"named": {"a": {}, "b": {"rolup": 1}}}, Outer) == f".named.b{said}"


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"rollup": "yes"}, ".rollup: expected true or false, got a string"),
        ({"rollup": 1}, ".rollup: expected true or false, got a whole number"),
        ({"depth": "1"}, ".depth: expected a whole number, got a string"),
        ({"depth": 1.5}, ".depth: expected a whole number, got a number"),
        ({"depth": 0}, ".depth: expected a whole number >= 1"),
        ({"factor": "1"}, ".factor: expected a number, got a string"),
        ({"output-file": []}, ".output-file: expected a string, got a list"),
        ({"output-file": {}}, ".output-file: expected a string, got a table"),
        ({"names": "a"}, ".names: expected a list, got a string"),
        ({"names": ["a", 1]}, ".names[1]: expected a string, got a whole number"),
        ({"form": "pretty"}, ".form: 'pretty' is none of 'raw', 'wrapped'"),
        (
            {"form": "wraped"},
            ".form: 'wraped' is none of 'raw', 'wrapped'; did you mean 'wrapped'?",
        ),
        (
            {"time-limit": 30},
            ".time-limit: 30 is not a duration: write it as a string such as '30s'",
        ),
        (
            {"every": "5h"},
            ".every: '5h' does not divide a day; nearest: '4h' or '6h'",
        ),
    ],
)
def test_a_value_of_the_wrong_kind_is_named_in_the_words_of_toml(
    table: dict[str, Any], said: str
) -> None:
    assert refusal(table) == said


def test_every_mistake_of_a_table_is_named() -> None:
    class Outer(Settings, frozen=True, kw_only=True):
        several: list[Example] = []
        named: dict[str, Example] = {}
        needy: Needy = Needy(url="x")

    table: dict[str, Any] = {
        "several": [{}, {"depth": 0}, 3],
        "named": {"a": {"rollup": 1, "form": "x"}, "b": []},
        "needy": {},
        "zzz": 1,
    }
    with pytest.raises(ConfigurationError) as caught:
        convert(table, Outer, "x", place="y")
    assert list(caught.value.problems) == [
        "y: x.several[1].depth: expected a whole number >= 1",
        "y: x.several[2]: expected a table",
        "y: x.named.a.rollup: expected true or false, got a whole number",
        "y: x.named.a.form: 'x' is none of 'raw', 'wrapped'",
        "y: x.named.b: expected a table",
        "y: x.needy.url: missing, and has no default",
        "y: x.zzz: unknown key; there are named, needy, several",
    ]


def test_a_key_that_must_be_there() -> None:
    assert "url" in refusal({}, Needy)


@pytest.mark.parametrize("table", ["text", 1, [], [{}], None])
def test_what_is_no_table(table: object) -> None:
    assert refusal(table) == ": expected a table [agents.example]"


def test_nearest() -> None:
    assert nearest("sampel", ["sample", "sysinfo"]) == "; did you mean 'sample'?"
    assert nearest("xyz", ["b", "a"]) == "; there are a, b"
    assert nearest("xyz", []) == ""


def test_joined() -> None:
    assert join_key("sinks", "", "a", "url") == "sinks.a.url"
    assert join_key("", "") == ""


def test_the_defaults_are_what_configurations_hold() -> None:
    document = tomllib.loads(defaults())
    for name, table in document["agents"].items():
        settings = agent_class(name).Settings
        assert convert(table, settings, name, place="defaults") == settings()
