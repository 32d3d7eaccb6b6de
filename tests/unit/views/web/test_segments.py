"""Names in paths: every name comes back, and none leaves its place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.views.web.addresses import decode_segment, encode_segment


@given(st.text(min_size=1, max_size=40))
def test_a_name_comes_back(name: str) -> None:
    segment = encode_segment(name)
    assert decode_segment(segment) == name
    assert segment.isascii()
    assert not set(segment) & set("/%?#\\&<>\"' ")
    assert segment.strip(".")


@pytest.mark.parametrize(
    ("name", "segment"),
    [("n042", "n042"), ("g-1.fox_2", "g-1.fox_2"), ("..", "~2E~2E"), (".", "~2E"), ("a/b", "a~2Fb"),
     ("~", "~7E"), (".hidden", "~2Ehidden")],
)  # fmt: skip
def test_usual_names_stay_as_they_are(name: str, segment: str) -> None:
    assert encode_segment(name) == segment


@pytest.mark.parametrize("segment", ["", "~", "~2", "~2e", "a/b", "%2F", "é", "a b", "x" * 4000])
def test_other_segments_are_no_names(segment: str) -> None:
    with pytest.raises(ValueError, match="not the address"):
        decode_segment(segment)
