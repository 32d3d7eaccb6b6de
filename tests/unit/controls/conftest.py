"""The disk of unit tests: what is written survives a process, and no test is about power."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def without_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync of a composed machine's many files takes a second; its order has a test of its own."""

    def sync(descriptor: int) -> None:
        del descriptor

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, sync)
