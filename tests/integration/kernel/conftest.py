"""Tests of ended processes need a kernel that takes programs of the kind iter/bpf_map_elem."""

from __future__ import annotations

import ctypes
import errno
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.kernel_programs import compiled

_OF_ENDED = {"test_job_groups", "test_kernel_load", "test_kernel_values", "test_bpf_source"}
_EMPTY = """
SEC("iter/bpf_map_elem")
int empty(struct bpf_iter__bpf_map_elem *ctx)
{
    return 0;
}
"""


@cache
def _refuses_map_iterators() -> bool:
    """Return whether the kernel answers EPERM to an empty program of this kind.

    Some builds of Linux 6.18.44 do. ccagent then loads `tasks` alone, and says so.
    """
    library = ctypes.CDLL("libbpf.so.1")
    library.bpf_object__open_file.restype = ctypes.c_void_p
    library.bpf_object__load.argtypes = library.bpf_object__close.argtypes = (ctypes.c_void_p,)
    with TemporaryDirectory() as directory:
        file = Path(directory) / "empty.bpf.o"
        file.write_bytes(compiled(Path(directory), _EMPTY))
        program = library.bpf_object__open_file(bytes(file), None)
    result: int = library.bpf_object__load(program)
    library.bpf_object__close(program)
    return result == -errno.EPERM


@pytest.fixture(autouse=True, scope="module")
def _kernel_takes_all(request: pytest.FixtureRequest) -> None:  # pyright: ignore[reportUnusedFunction]
    if request.path.stem in _OF_ENDED and _refuses_map_iterators():
        pytest.skip("this kernel answers EPERM to any program of the kind iter/bpf_map_elem")
