"""The short way past click finds the same options as click does, or leaves them to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.commands.main import cli
from ccagent.commands.options import Options
from ccagent.commands.quick import parse_quick
from ccagent.config.registry import AGENTS

if TYPE_CHECKING:
    from collections.abc import Iterator


class Samples:
    """What commands would sample, instead of doing it."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, Options]] = []

    def take(self, agent: str, options: Options, **more: Any) -> int:
        assert more == {"verbosity": 0, "assignments": (), "is_dry": False}
        self.taken.append((agent, options))
        return 0


@pytest.fixture(scope="module")
def samples() -> Iterator[Samples]:
    samples = Samples()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ccagent.commands.one_shot.sample_once", samples.take)
        yield samples


def through_click(samples: Samples, arguments: list[str]) -> tuple[str, Options]:
    samples.taken.clear()
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments, standalone_mode=False)
    assert ended.value.code == 0
    (taken,) = samples.taken
    return taken


TEXT = st.text(alphabet="ab=/:.,'\" \udcff-", max_size=6)
VALUED = st.tuples(st.sampled_from(["--config", "--cluster", "--sink"]), TEXT)
FORMAT = st.tuples(st.just("--format"), st.sampled_from(["sonar", "line"]))
OPTION = st.one_of(
    st.sampled_from([["--once"], ["--no-config"]]),
    (VALUED | FORMAT).map(list),
    (VALUED | FORMAT).map(lambda pair: [f"{pair[0]}={pair[1]}"]),
)


@given(st.sampled_from([*AGENTS]), st.lists(OPTION, max_size=5))
def test_both_find_the_same(samples: Samples, agent: str, options: list[list[str]]) -> None:
    arguments = [agent, *(word for option in options for word in option)]
    quick = parse_quick(arguments)
    if quick is not None:
        assert quick == through_click(samples, arguments)


def test_what_cron_runs_goes_the_short_way() -> None:
    file = "/etc/ccagent/ccagent.toml"
    assert parse_quick(["sample", "--once"]) == ("sample", Options())
    assert parse_quick(["sample", "--once", "--config", file]) == ("sample", Options(path=file))
    assert parse_quick(["jobs", "--sink=dir:/a", "--sink", "stdout:", "--format", "line"]) == (
        "jobs", Options(sinks=("dir:/a", "stdout:"), form="line")
    )  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [
        [], ["--help"], ["run"], ["smaple"], ["sample", "--help"], ["sample", "-v"],
        ["sample", "--every", "1s"], ["sample", "--set", "rollup=true"], ["sample", "--dry-run"],
        ["sample", "--format", "json"], ["sample", "--config"], ["sample", "--config", "--once"],
        ["sample", "--once=1"], ["sample", "extra"], ["lustre", "check"], ["metrics", "--list"],
    ],
)  # fmt: skip
def test_all_else_is_left_to_click(arguments: list[str]) -> None:
    assert parse_quick(arguments) is None
