"""Errors of libbpf as sentences."""

from __future__ import annotations

import errno

import pytest

from ccagent.errors import NotPermittedError
from ccagent.machine.bpf.libbpf import make_error
from tests.support.doctor_site import ALL, NONE, status


@pytest.mark.parametrize(
    ("capabilities", "sentence"),
    [
        (ALL, "this process has CAP_BPF and CAP_PERFMON and CAP_SYS_ADMIN: a user namespace"),
        (NONE, "this process lacks CAP_BPF and CAP_PERFMON and CAP_SYS_ADMIN: prog"),
    ],
)
def test_a_refusal_names_what_is_missing(capabilities: str, sentence: str) -> None:
    content = status(capabilities=capabilities).encode()
    error = make_error(errno.EPERM, "io", "libbpf: prog 'on_open': load failed", content)
    assert isinstance(error, NotPermittedError)
    assert f"Operation not permitted: {sentence}" in str(error)


def test_a_function_that_no_program_can_be_attached_to() -> None:
    error = make_error(524, "io: on_vfs_read", "libbpf: prog 'on_vfs_read': failed to attach")
    assert str(error) == "io: on_vfs_read: this kernel attaches no program to this function"
