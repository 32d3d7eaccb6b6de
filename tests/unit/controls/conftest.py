"""Fixtures of the tests of controls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ccagent.controls.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _journals_are_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the journals of a test: each keeps a descriptor."""
    made: list[Journal] = []
    real = Journal.__init__

    def remember(journal: Journal, directory: str) -> None:
        made.append(journal)
        real(journal, directory)

    monkeypatch.setattr(Journal, "__init__", remember)
    yield
    for journal in made:
        journal.close()
