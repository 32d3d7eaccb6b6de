"""Errors of libbpf as sentences."""

from __future__ import annotations

import errno
import os

import pytest

from ccagent.errors import NotPermittedError
from ccagent.machine.bpf.libbpf import make_error


@pytest.mark.parametrize(
    ("user", "sentence"), [(0, "root lacks capabilities here"), (1000, "root, or CAP_BPF")]
)
def test_root_is_not_told_to_become_root(
    monkeypatch: pytest.MonkeyPatch, user: int, sentence: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    error = make_error(errno.EPERM, "io", "libbpf: prog 'on_open': load failed")
    assert isinstance(error, NotPermittedError)
    assert f"Operation not permitted: {sentence}" in str(error)


def test_a_function_that_no_program_can_be_attached_to() -> None:
    error = make_error(524, "io: on_vfs_read", "libbpf: prog 'on_vfs_read': failed to attach")
    assert str(error) == "io: on_vfs_read: this kernel attaches no program to this function"
