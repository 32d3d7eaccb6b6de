"""Fixtures of the tests of controls."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from ccagent.controls.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _without_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip syncs: a composed machine has many files, and the order of syncs has its own test."""

    def sync(descriptor: int) -> None:
        del descriptor

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, sync)


@pytest.fixture(autouse=True)
def _journals_are_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the journals of a test: each keeps a descriptor."""
    made: list[Journal] = []
    real = Journal.__init__

    def remember(journal: Journal, directory: str) -> None:
        real(journal, directory)
        made.append(journal)

    monkeypatch.setattr(Journal, "__init__", remember)
    yield
    for journal in made:
        journal.close()
