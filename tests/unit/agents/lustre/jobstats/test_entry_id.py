"""Entry ids in the formats that clients are configured for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.lustre.agent import LustreSettings
from ccagent.agents.lustre.jobstats.entry import IdFormat

DEFAULTS = tuple(map(IdFormat, LustreSettings().formats))
FORMATS = tuple(map(IdFormat, ("%j:%u:%H", "%j:%u:%h", "%e.%u")))


def parse_id(
    entry_id: str, formats: tuple[IdFormat, ...]
) -> tuple[IdFormat, dict[str, str | int]] | None:
    for form in formats:
        parts = form.parse(entry_id)
        if parts is not None:
            return form, parts
    return None


@pytest.mark.parametrize(
    ("entry_id", "form", "parts"),
    [
        (
            "11317854:17627127:r01c01",
            "%j:%u:%H",
            {"job_id": 11317854, "user_id": 17627127, "nodename": "r01c01"},
        ),
        (
            "11317854:17627127:r01c01.bullx",
            "%j:%u:%h",
            {"job_id": 11317854, "user_id": 17627127, "nodename": "r01c01.bullx"},
        ),
        (":17627127:r01c02", "%j:%u:%H", {"user_id": 17627127, "nodename": "r01c02"}),
        ("wget.11317854", "%e.%u", {"executable": "wget", "user_id": 11317854}),
        ("kworker/0:1.0", "%e.%u", {"executable": "kworker/0:1", "user_id": 0}),
        ("Web Content.1000", "%e.%u", {"executable": "Web Content", "user_id": 1000}),
        ("a.out.2.1000", "%e.%u", {"executable": "a.out.2", "user_id": 1000}),
        (
            "SLURM_JOB97:0:es18kxe-co-client",
            "%j:%u:%H",
            {"job_id": "SLURM_JOB97", "user_id": 0, "nodename": "es18kxe-co-client"},
        ),
        ("0123:5:n1", "%j:%u:%H", {"job_id": "0123", "user_id": 5, "nodename": "n1"}),
    ],
)
def test_the_first_format_that_fits_tells_the_parts(
    entry_id: str, form: str, parts: dict[str, object]
) -> None:
    found = parse_id(entry_id, FORMATS)
    assert found is not None
    assert (found[0].text, found[1]) == (form, parts)


@pytest.mark.parametrize("entry_id", ["", "11317854", "11317854:", "123:45", "wget", "no", "a.b"])
def test_half_an_id_has_none(entry_id: str) -> None:
    assert parse_id(entry_id, FORMATS) is None


@pytest.mark.parametrize(
    ("entry_id", "job"),
    [("11317854", 11317854), ("0123", "0123"), ("1234.server", "1234.server"), ("12_3", "12_3"),
     ("SLURM_JOB79", "SLURM_JOB79")],
)  # fmt: skip
def test_a_job_id_may_stand_alone(entry_id: str, job: int | str) -> None:
    assert parse_id(entry_id, DEFAULTS) == (DEFAULTS[-1], {"job_id": job})


@pytest.mark.parametrize(
    "entry_id", ["", "wget", "no", "a.b", "11317854:", "123:45", "x\\x0a", "1 2"]
)
def test_half_an_id_is_no_job_id(entry_id: str) -> None:
    assert parse_id(entry_id, DEFAULTS) is None


def test_every_code_has_its_part() -> None:
    found = parse_id("a b@3@7@9@c1.x@12", (IdFormat("%e@%u@%g@%p@%h@%j"),))
    assert found is not None
    assert found[1] == {
        "executable": "a b", "user_id": 3, "group_id": 7, "process_id": 9, "nodename": "c1.x",
        "job_id": 12,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("%x", "%x is none of"),
        ("%", "% is none of"),
        ("plain", "none of %e"),
        ("%u:%u", "user_id occurs twice"),
        ("%h:%H", "nodename occurs twice"),
    ],
)
def test_a_format_that_means_nothing_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        IdFormat(text)


@given(st.text(max_size=40))
def test_any_id_has_parts_or_none(entry_id: str) -> None:
    parse_id(entry_id, FORMATS)


@given(
    st.integers(1, 10**9),
    st.integers(0, 2**32 - 1),
    st.from_regex(r"[a-z][a-z0-9-]*", fullmatch=True),
)
def test_what_a_client_makes_is_told_again(job: int, user: int, host: str) -> None:
    found = parse_id(f"{job}:{user}:{host}", FORMATS)
    assert found is not None
    assert found[1] == {"job_id": job, "user_id": user, "nodename": host}
