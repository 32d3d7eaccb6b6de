"""What every unit test is watched for: descriptors that it leaves open."""

from __future__ import annotations

import gc
import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from ccagent.agents.sonar.sources.procfs import ProcfsSource
from ccagent.machine.descriptors import KeptFiles

if TYPE_CHECKING:
    from collections.abc import Iterator

_LIMIT = 5.0
"""Threads that a test has abandoned close their files within this time."""

_ALLOWED = 16
"""What pytest still refers to, an error's frames for example, keeps a few files open."""


@pytest.fixture(autouse=True)
def _sources_are_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the process sources and kept files of a test: they have many descriptors."""
    made: list[ProcfsSource | KeptFiles] = []

    def watch(kind: type[Any]) -> None:
        real = kind.__init__

        def remember(source: Any, *arguments: Any, **named: Any) -> None:
            made.append(source)
            real(source, *arguments, **named)

        monkeypatch.setattr(kind, "__init__", remember)

    watch(ProcfsSource)
    watch(KeptFiles)
    yield
    for source in made:
        source.close()


def _descriptors() -> dict[str, str]:
    found: dict[str, str] = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[number] = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
    return found


@pytest.fixture(scope="module", autouse=True)
def _no_descriptor_is_left() -> Iterator[None]:
    """Fail if the tests of a file leave many descriptors open."""
    before = _descriptors()
    yield
    end = time.monotonic() + _LIMIT
    while True:
        left = {number: to for number, to in _descriptors().items() if number not in before}
        if len(left) <= _ALLOWED or time.monotonic() > end:
            break
        gc.collect()
        time.sleep(0.05)
    assert len(left) <= _ALLOWED, left
