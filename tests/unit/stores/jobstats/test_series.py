"""Ids of series and the file of namespaces."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from ccagent.errors import ConfigurationError
from ccagent.stores.jobstats.series import EntryFormats, make_series_id, read_namespaces

NAMESPACE = UUID("2e79b8a1-c4fc-45ba-9023-d16fdce6e3fe")


def test_the_vector_of_the_specification() -> None:
    made = make_series_id(NAMESPACE, "scratch-OST0001", "11317854:17627127:r01c01")
    assert made == UUID("af854063-c381-585f-b551-ce0b6c4440a3")


def test_formats_are_tried_in_order() -> None:
    formats = EntryFormats(["%j:%u:%H", "%e.%u"])
    assert formats.parse("5:6:n1") == ("%j:%u:%H", {"job_id": 5, "user_id": 6, "nodename": "n1"})
    assert formats.parse("cp.6") == ("%e.%u", {"executable": "cp", "user_id": 6})
    assert formats.parse("?") == ("", {})
    assert formats.names == ["%j:%u:%H", "%e.%u", ""]


def test_namespaces_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "namespaces"
    path.touch(mode=0o600)
    path.write_text(f"# comment\n\n%j:%u:%H {NAMESPACE}\n- {NAMESPACE}\n")
    assert read_namespaces(str(path)) == {"%j:%u:%H": NAMESPACE, "": NAMESPACE}


@pytest.mark.parametrize("line", [f"{NAMESPACE}", f"%j {NAMESPACE} x", "%j not-a-uuid"])
def test_a_bad_line_is_named_without_its_secret(tmp_path: Path, line: str) -> None:
    path = tmp_path / "namespaces"
    path.touch(mode=0o600)
    path.write_text(f"\n{line}\n")
    with pytest.raises(ConfigurationError, match="line 2: expected a format and a UUID") as caught:
        read_namespaces(str(path))
    assert str(NAMESPACE) not in str(caught.value)
