"""energy, dcmi: the output of both programs; answers that are slow, wrong, or none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.energy.accounts import NODE_METER
from ccagent.agents.energy.sources.meters import DcmiSource, parse_dcmi
from ccagent.errors import NotHereError, ProgramError, UnparsableError
from tests.support.energy_tree import EnergyNode

FREEIPMI = b"""Current Power                        : %d Watts
Minimum Power over sampling duration : 4 watts
Maximum Power over sampling duration : 1290 watts
Average Power over sampling duration : 415 watts
Time Stamp                           : 08/02/2026 - 15:44:44
Statistics reporting time period     : 1000 milliseconds
Power Measurement                    : Active
"""
IPMITOOL = b"""
    Instantaneous power reading:                   332 Watts
    Minimum during sampling period:                  4 Watts
    Maximum during sampling period:                932 Watts
    Average power reading over sample period:      378 Watts
    IPMI timestamp:                           Sun Nov 22 20:00:00 2026
    Sampling period:                          00000001 Seconds.
    Power reading state is:                   activated


"""


class BmcNode(EnergyNode):
    """A node whose BMC answers by programs; `outputs` by the name of the program."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.outputs: dict[str, bytes | Exception] = {}
        self.calls: list[str] = []

    def run(
        self,
        command: Sequence[str],
        *,
        time_limit: float,
        output_limit: int,
        stop: int | None = None,
        standard_input: bytes = b"",
    ) -> bytes:
        self.calls.append(command[0])
        output = self.outputs.get(command[0], NotHereError(f"{command[0]}: no such program"))
        if isinstance(output, Exception):
            raise output
        return output


def make_source(*command: str) -> DcmiSource:
    source = DcmiSource(command, 30.0, 20.0)
    source.is_patient = True
    return source


def tick(source: DcmiSource, node: BmcNode, seconds: float) -> float | str | None:
    """Return the joules after some seconds, or the flaw."""
    node.still.sleep(seconds)
    source.prepare_reading(node)
    found = source.read(node).get(NODE_METER)
    return None if found is None else found.flaw or found.energy / 1e6


def test_both_programs() -> None:
    assert parse_dcmi(FREEIPMI % 396) == 396_000_000
    assert parse_dcmi(IPMITOOL) == 332_000_000


@pytest.mark.parametrize(
    "output",
    [
        b"",
        b"ipmi-dcmi: driver timeout\n",
        FREEIPMI % 0,
        IPMITOOL.replace(b"activated", b"deactivated"),
        (FREEIPMI % 300).replace(b": Active", b": Not Available"),
        IPMITOOL.replace(b"332 Watts", b"many Watts"),
    ],
)
def test_what_is_no_power(output: bytes) -> None:
    with pytest.raises(UnparsableError):
        parse_dcmi(output)


@given(st.binary())
def test_any_output_is_understood_or_unparsable(output: bytes) -> None:
    try:
        assert parse_dcmi(output) > 0
    except UnparsableError:
        return


def test_power_is_held_between_answers(tmp_path: Path) -> None:
    node, source = BmcNode(tmp_path), make_source()
    node.outputs["ipmi-dcmi"] = FREEIPMI % 300
    assert tick(source, node, 10) is None
    assert tick(source, node, 10) == 3000.0
    node.outputs["ipmi-dcmi"] = FREEIPMI % 500
    assert tick(source, node, 10) == 4000.0
    assert node.calls == ["ipmi-dcmi"] * 3
    source.close()


def test_the_other_program_is_asked_where_one_is_missing(tmp_path: Path) -> None:
    node, source = BmcNode(tmp_path), make_source()
    node.outputs["ipmitool"] = IPMITOOL
    tick(source, node, 10)
    assert tick(source, node, 10) == 3320.0
    source.close()


def test_failures_are_bridged_for_a_while(tmp_path: Path) -> None:
    node, source = BmcNode(tmp_path), make_source()
    node.outputs["ipmi-dcmi"] = FREEIPMI % 300
    tick(source, node, 10)
    node.outputs["ipmi-dcmi"] = ProgramError("ipmi-dcmi: driver timeout")
    assert tick(source, node, 60) == 18_000.0
    assert source.errors == ["ipmi-dcmi: driver timeout"]
    assert tick(source, node, 60) is None  # nothing was known for too long
    node.outputs["ipmi-dcmi"] = FREEIPMI % 300
    assert tick(source, node, 60) == "120 s between two readings of power"
    source.close()


def test_without_a_program_it_says_so(tmp_path: Path) -> None:
    node, source = BmcNode(tmp_path), make_source()
    assert tick(source, node, 10) is None
    assert source.errors == [
        "ipmi-dcmi or ipmitool is needed, and not installed: see agents.energy.dcmi-command"
    ]
    source.close()
