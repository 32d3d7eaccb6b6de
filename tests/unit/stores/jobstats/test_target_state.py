"""Points of targets: which lines are of targets, and which ones a sender may store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.stores.jobstats.admission import ANY_SENDER, RefusedArrayError, SenderRights
from ccagent.stores.jobstats.target_state import DecodedStates, decode_states

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LATEST = NOW + timedelta(hours=1)


def line(name: str = "lustre_ost_exports", target: str = "fs-OST0003", **tags: str) -> str:
    more = "".join(f",{key}={value}" for key, value in tags.items())
    moment = int(NOW.timestamp())
    return f"{name},hostname=oss1,stype=filesystem,stype-id={target}{more} value=7 {moment}\n"


def decode(text: str, server: str | None = None, *targets: str) -> DecodedStates:
    return decode_states(text.encode(), SenderRights(server, targets), LATEST, NOW)


def test_numbers_of_a_target_are_one_row() -> None:
    text = line() + line("lustre_recovery_status") + line("lustre_mdt_lock_count", "fs-MDT0000")
    assert decode(text).rows == {
        ("fs-OST0003", "oss1", NOW): {"exports": 7, "recovery_status": 7},
        ("fs-MDT0000", "oss1", NOW): {"lock_count": 7},
    }


@pytest.mark.parametrize(
    "text",
    [
        line("lustre_read_bytes"), line("cpu_load"), line(target="fs"), line(target="MGS"),
        line("lustre_brw_io_size_read_4096"), line().replace("value=7", 'log="x"'),
        line().replace("value=7", "value=true"), line().replace("stype=filesystem,", ""),
    ],
)  # fmt: skip
def test_other_lines_are_ignored(text: str) -> None:
    assert decode(text) == DecodedStates({}, 1, [])


def test_a_token_permits_its_server_and_targets() -> None:
    assert len(decode(line(), "oss1", "fs-OST*").rows) == 1
    for server, pattern in (("oss2", "fs-OST*"), ("oss1", "fs-OST1*")):
        with pytest.raises(RefusedArrayError) as refused:
            decode(line(), server, pattern)
        assert refused.value.is_forbidden


def test_a_bad_line_refuses_no_other() -> None:
    late = line().replace(str(int(NOW.timestamp())), str(int(LATEST.timestamp()) + 1))
    found = decode("lustre_ost_exports value=\n" + line() + late)
    assert (len(found.rows), [one.number for one in found.refused]) == (1, [1, 3])
    with pytest.raises(RefusedArrayError, match="UTF-8"):
        decode_states(b"\xff", ANY_SENDER, LATEST, NOW)


@given(st.text() | st.lists(st.sampled_from(["lustre_ost_x", ",", "stype", "=", " ", "1", "\n"])))
def test_any_text_is_decoded_or_refused(text: str | list[str]) -> None:
    try:
        found = decode("".join(text))
    except (RefusedArrayError, UnicodeEncodeError):
        return
    assert all(key[0] for key in found.rows)
