"""A kernel that seems to lack functions: its BTF with some names hidden, as programs are loaded.

Format: the kernel's Documentation/bpf/btf.rst. A hidden function has its last letter for a name,
which is in the table of strings already: no other name changes, and nothing moves.
"""

from __future__ import annotations

import struct
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ccagent.machine.bpf.libbpf import BTF

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

_HEADER = struct.Struct("<HBBIIIII")  # magic, version, flags, length, types, strings
_MAGIC = 0xEB9F
_FUNCTION = 12  # BTF_KIND_FUNC
_ENTRY = struct.Struct("<II")  # a name and `info` of a type, or a name and value of an enumerator


def hide(btf: bytes, functions: Iterable[str], enumerators: Mapping[str, int]) -> bytes:
    """Return BTF without functions, and without enumerators of these values."""
    magic, _, _, length, types_at, types_size, strings_at, strings_size = _HEADER.unpack_from(btf)
    assert magic == _MAGIC
    begin, end = length + types_at, length + types_at + types_size
    strings = btf[length + strings_at :][:strings_size]
    changed = bytearray(btf)
    values: dict[str, int | None] = {**dict.fromkeys(functions), **enumerators}
    for name, value in values.items():
        offset = strings.index(b"\0" + name.encode() + b"\0") + 1
        at, found = begin, 0
        while (at := btf.find(struct.pack("<I", offset), at, end)) >= 0:
            if at % 4 == begin % 4 and _is_wanted(_ENTRY.unpack_from(btf, at)[1], value):
                struct.pack_into("<I", changed, at, offset + len(name) - 1)
                found += 1
            at += 1
        assert found == 1, f"{name}: {found} times in BTF"
    return bytes(changed)


def _is_wanted(info: int, value: int | None) -> bool:
    """Return whether an entry is that of an enumerator of this value, or for None of a function."""
    return info >> 24 & 0x1F == _FUNCTION if value is None else info == value


@contextmanager
def lacking_kernel(
    functions: Iterable[str], enumerators: Mapping[str, int] | None = None
) -> Generator[None]:
    """Have the running kernel seem to lack functions for a while, to whoever loads programs."""
    file = Path("/tmp/lacking.btf")
    file.write_bytes(hide(Path(BTF).read_bytes(), functions, enumerators or {}))
    subprocess.run(["mount", "--bind", file, BTF], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", BTF], check=True)
