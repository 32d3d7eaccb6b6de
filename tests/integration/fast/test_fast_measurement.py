"""A measurement of bandwidth that a scheduler asks for, with the real probe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from ccagent.agents.fast import bandwidth
from ccagent.agents.fast.bandwidth import (
    BandwidthReference,
    read_processor,
    write_reference,
)
from ccagent.machine.node import Node
from tests.integration.fast.conftest import FastSite, running

if TYPE_CHECKING:
    import pytest

    from tests.support.fast_scheduler import FastScheduler


def _no_owners(*_: object) -> dict[int, str]:
    return {}


def test_a_measurement_is_answered_in_both_readings(
    fast_site: FastSite, fast_scheduler: FastScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bandwidth, "find_owners", _no_owners)  # other tests may run jobs
    settings = structs.replace(fast_site.settings(), mmbwmon=True, max_rate=10.0)
    with running(settings):
        fast_scheduler.wait_for_task("init")

        def ask(cores: list[int]) -> dict[str, object]:
            answer = fast_scheduler.answer(fast_scheduler.request_bandwidth(cores))
            while "max-rate" in str(answer.get("details")):
                answer = fast_scheduler.answer(fast_scheduler.request_bandwidth(cores))
            return answer

        assert str(ask([0])["details"]).startswith("no reference")
        processor = read_processor(Node())
        reference = BandwidthReference(
            model=processor.model,
            cpus=processor.cpus,
            kernel=processor.kernel,
            by_count={1: 1e9},
            time=1.0,
        )
        write_reference(settings.state_directory, reference)
        assert ask([0, 60000])["details"] == "no core 60000 on this node"
        answer = ask([0])
    assert answer["cores"] == [0]
    assert answer["result"] == answer["response"]
    value, share = answer["response"], answer["cpu-share"]
    assert isinstance(value, float | int)
    assert 0.33 <= value <= 1
    assert isinstance(share, float | int)
    assert 0 < share <= 1
    assert answer["valid"] == (share >= 0.9)
