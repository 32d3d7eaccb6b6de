"""Functions of the running kernel with their numbers of arguments, from its BTF through libbpf."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.machine.bpf.libbpf import Libbpf

_FUNCTION = 12  # BTF_KIND_FUNC
_MEMBERS = 0xFFFF  # BTF_INFO_VLEN


class _BtfType(ctypes.Structure):
    """The first fields of struct btf_type. For a function `type` is the id of its prototype."""

    _fields_ = (
        ("name", ctypes.c_uint32),
        ("info", ctypes.c_uint32),
        ("type", ctypes.c_uint32),
    )


def read_functions(library: Libbpf, names: Iterable[str]) -> dict[str, int]:
    """Return the number of arguments by function, without functions that the kernel lacks.

    Raise NotHereError, NotPermittedError or ProgramError if the kernel's BTF can't be read.
    """
    found: dict[str, int] = {}
    btf = library.pointer("btf__load_vmlinux_btf", what="BTF of the kernel")
    try:
        for name in names:
            number = library.call("btf__find_by_name_kind", btf, name.encode(), _FUNCTION)
            if number > 0:
                function = _type(library, btf, number)
                found[name] = _type(library, btf, function.type).info & _MEMBERS
    finally:
        library.release("btf__free", btf)
    return found


def _type(library: Libbpf, btf: int, number: int) -> _BtfType:
    address = library.pointer("btf__type_by_id", btf, number, what="BTF of the kernel")
    return _BtfType.from_address(address)
