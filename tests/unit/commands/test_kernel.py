"""The exit status of `ccagent kernel status`."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from ccagent.commands.kernel import kernel
from ccagent.machine.bpf import status
from ccagent.machine.bpf.status import KernelProgramStatus


@pytest.mark.parametrize(
    ("io", "code"), [("", 0), ("loaded", 0), ("other version", 1), ("incomplete", 1)]
)
def test_programs_for_io_of_another_version_are_a_failure(
    monkeypatch: pytest.MonkeyPatch, io: str, code: int
) -> None:
    def read_status(directory: str) -> KernelProgramStatus:
        return KernelProgramStatus(directory, "loaded", io=io)

    monkeypatch.setattr(status, "read_status", read_status)
    assert CliRunner().invoke(kernel, ["status"]).exit_code == code
