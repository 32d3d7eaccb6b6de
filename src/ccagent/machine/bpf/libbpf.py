"""libbpf through ctypes: load an object file, attach and pin its programs, read the kernel's BTF.

libbpf is a system library (libbpf.so.1, or .so.0 from 0.5 on); no Python package is needed. Its
messages are captured: an error contains the line with the reason.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Self

from ccagent.errors import CcagentError, NotHereError, NotPermittedError, ProgramError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType


LIBRARIES = ("libbpf.so.1", "libbpf.so.0")
BTF = "/sys/kernel/btf/vmlinux"
UNATTACHABLE = "this kernel attaches no program to this function"
_ENOTSUPP = 524  # the kernel's own, beside ENOTSUP
_WARNING = 0
_STRICT = 0xFFFFFFFF
_MOST_TEXT = 64 * 1024
_PRINT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_NEEDED = ("CAP_BPF", "CAP_PERFMON", "CAP_SYS_ADMIN")

_POINTERS = {
    "bpf_object__open_mem": (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p),
    "bpf_object__find_program_by_name": (ctypes.c_void_p, ctypes.c_char_p),
    "bpf_object__find_map_by_name": (ctypes.c_void_p, ctypes.c_char_p),
    "bpf_program__attach": (ctypes.c_void_p,),
    "bpf_program__attach_iter": (ctypes.c_void_p, ctypes.c_void_p),
    "btf__load_vmlinux_btf": (),
    "btf__type_by_id": (ctypes.c_void_p, ctypes.c_uint32),
}

_NUMBERS = {
    "bpf_object__load": (ctypes.c_void_p,),
    "bpf_object__close": (ctypes.c_void_p,),
    "bpf_map__fd": (ctypes.c_void_p,),
    "bpf_map_update_elem": (ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64),
    "bpf_map__set_max_entries": (ctypes.c_void_p, ctypes.c_uint32),
    "bpf_map__reuse_fd": (ctypes.c_void_p, ctypes.c_int),
    "bpf_map__set_initial_value": (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t),
    "bpf_program__set_autoload": (ctypes.c_void_p, ctypes.c_bool),
    "bpf_program__set_attach_target": (ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p),
    "btf__find_by_name_kind": (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint32),
    "btf__free": (ctypes.c_void_p,),
    "bpf_link__pin": (ctypes.c_void_p, ctypes.c_char_p),
    "bpf_link__destroy": (ctypes.c_void_p,),
    "libbpf_num_possible_cpus": (),
}


class _OpenOptions(ctypes.Structure):
    """The first fields of struct bpf_object_open_opts."""

    _fields_ = (("size", ctypes.c_size_t), ("name", ctypes.c_char_p))


class _IteratorOptions(ctypes.Structure):
    """struct bpf_iter_attach_opts. `info` points to a union that starts with a map's descriptor."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("info", ctypes.POINTER(ctypes.c_uint32)),
        ("info_size", ctypes.c_uint32),
    )


class Link(NamedTuple):
    """An attached program. It stays attached while it is pinned or this process holds the link."""

    pointer: int
    what: str


class Libbpf:
    """libbpf and its messages. Raise NotHereError if libbpf is not installed or too old."""

    def __init__(self, names: tuple[str, ...] = LIBRARIES) -> None:
        self._library = open_libbpf(names)
        self._messages = b""
        # A reference, because the library calls the function while it is loaded.
        self._listener = _PRINT(self._listen)
        try:
            for functions, result in ((_POINTERS, ctypes.c_void_p), (_NUMBERS, ctypes.c_int)):
                for name, arguments in functions.items():
                    function = getattr(self._library, name)
                    function.argtypes, function.restype = arguments, result
            self._library.libbpf_get_error.argtypes = (ctypes.c_void_p,)
            self._library.libbpf_get_error.restype = ctypes.c_long
            self._library.libbpf_set_print(self._listener)
        except AttributeError as error:
            raise NotHereError(f"libbpf is too old (0.5 is needed): {error}") from error
        if hasattr(self._library, "libbpf_set_strict_mode"):
            self._library.libbpf_set_strict_mode(ctypes.c_uint32(_STRICT))

    def possible_cpus(self) -> int:
        """Return the number of possible CPUs."""
        return self.number("libbpf_num_possible_cpus", what="number of CPUs")

    def pointer(self, function: str, *arguments: Any, what: str) -> int:
        """Call a function that returns a pointer. Raise an error of `make_error` if it fails."""
        self._messages = b""
        result: int | None = getattr(self._library, function)(*arguments)
        failed: int = self._library.libbpf_get_error(result)
        if result is None or failed:
            self._raise(-failed or ctypes.get_errno(), what)
        return result

    def number(self, function: str, *arguments: Any, what: str) -> int:
        """Call a function that returns a number. Raise an error of `make_error` if that is < 0."""
        self._messages = b""
        result: int = getattr(self._library, function)(*arguments)
        if result < 0:
            self._raise(-result if result != -1 else ctypes.get_errno() or 1, what)
        return result

    def call(self, function: str, *arguments: Any) -> int:
        """Call a function that returns a number, without a check for errors."""
        result: int = getattr(self._library, function)(*arguments)
        return result

    def said(self) -> str:
        """Return the warnings of the last call."""
        return self._messages.decode("utf-8", "replace")

    def release(self, function: str, pointer: int) -> None:
        """Call a function that frees a pointer."""
        getattr(self._library, function)(pointer)

    def _listen(self, level: int, form: bytes, arguments: int) -> int:
        # va_list depends on the platform, but is passed as a pointer on x86_64 and aarch64.
        if level == _WARNING and len(self._messages) < _MOST_TEXT * 16:
            text = ctypes.create_string_buffer(_MOST_TEXT)
            ctypes.CDLL(None).vsnprintf(
                text, ctypes.c_size_t(_MOST_TEXT), form, ctypes.c_void_p(arguments)
            )
            self._messages += text.value
        return 0

    def _raise(self, code: int, what: str) -> NoReturn:
        """Raise NotPermittedError, NotHereError or ProgramError for an errno."""
        status = b""
        with suppress(OSError), open("/proc/self/status", "rb") as file:
            status = file.read()
        raise make_error(code, what, self._messages.decode("utf-8", "replace"), status)


class Object:
    """A BPF object file: open, optionally adjust, load, attach.

    Pinned programs stay after close. All methods raise NotPermittedError, NotHereError or
    ProgramError if libbpf fails.
    """

    def __init__(self, library: Libbpf, name: str, content: bytes) -> None:
        self._library = library
        self._name = name
        self._links: list[Link] = []
        options = _OpenOptions(ctypes.sizeof(_OpenOptions), name.encode())
        self._pointer = library.pointer(
            "bpf_object__open_mem", content, len(content), ctypes.byref(options), what=name
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def set_entries(self, name: str, entries: int) -> None:
        """Set the maximum of a map's entries. Call before `load`."""
        self._number("bpf_map__set_max_entries", self._map(name), entries)

    def leave_out(self, program: str) -> None:
        """Exclude a program. Call before `load`."""
        self._number("bpf_program__set_autoload", self._program(program), False)

    def set_target(self, program: str, function: str) -> None:
        """Set the function of a program, instead of its section's. Call before `load`."""
        pointer = self._program(program)
        self._number("bpf_program__set_attach_target", pointer, 0, function.encode())

    def share_maps(self, other: Object, names: Iterable[str]) -> None:
        """Use the maps of a loaded object instead of new maps. Call before `load`."""
        for name in names:
            descriptor = other._number("bpf_map__fd", other._map(name))
            self._number("bpf_map__reuse_fd", self._map(name), descriptor)

    def set_constants(self, content: bytes) -> None:
        """Set the programs' constants, which the verifier uses. Call before `load`."""
        place = self._map(f"{self._name}.rodata")
        self._number("bpf_map__set_initial_value", place, content, len(content))

    def load(self) -> None:
        """Load the programs into the kernel, which verifies them."""
        self._number("bpf_object__load", self._pointer)

    def put(self, name: str, key: bytes, value: bytes) -> None:
        """Set an entry of a map. Call after `load`."""
        descriptor = self._number("bpf_map__fd", self._map(name))
        self._number("bpf_map_update_elem", descriptor, key, value, 0)

    def attach(self, program: str) -> Link:
        """Attach a program to the target in its section's name."""
        return self._attach(program, "bpf_program__attach", self._program(program))

    def attach_iterator(self, program: str, over: str = "") -> Link:
        """Create the link of an iterator. over: the map of an iterator over map elements."""
        pointer = self._program(program)
        if not over:
            return self._attach(program, "bpf_program__attach_iter", pointer, None)
        descriptor = ctypes.c_uint32(self._number("bpf_map__fd", self._map(over)))
        # The union is larger in newer kernels: missing fields are treated as 0.
        options = _IteratorOptions(
            ctypes.sizeof(_IteratorOptions), ctypes.pointer(descriptor), ctypes.sizeof(descriptor)
        )
        return self._attach(program, "bpf_program__attach_iter", pointer, ctypes.byref(options))

    def pin(self, link: Link, path: str) -> None:
        """Pin a link as a file of a mounted bpffs."""
        self._library.number(
            "bpf_link__pin", link.pointer, os.fsencode(path), what=f"{path} ({link.what})"
        )

    def close(self) -> None:
        """Free all resources. Programs that are not pinned are detached."""
        for link in self._links:
            self._library.release("bpf_link__destroy", link.pointer)
        self._links.clear()
        if self._pointer:
            self._library.release("bpf_object__close", self._pointer)
            self._pointer = 0

    def _attach(self, program: str, function: str, *arguments: Any) -> Link:
        what = f"{self._name}: {program}"
        link = Link(self._library.pointer(function, *arguments, what=what), what)
        self._links.append(link)
        return link

    def _program(self, name: str) -> int:
        return self._find("program", name)

    def _map(self, name: str) -> int:
        return self._find("map", name)

    def _find(self, kind: str, name: str) -> int:
        function, what = f"bpf_object__find_{kind}_by_name", f"{self._name}: {kind} {name}"
        return self._library.pointer(function, self._pointer, name.encode(), what=what)

    def _number(self, function: str, *arguments: Any) -> int:
        return self._library.number(function, *arguments, what=self._name)


def check_kernel(btf: str = BTF) -> None:
    """Raise NotHereError if the kernel has no BTF, the description of its structures."""
    if not os.path.exists(btf):
        raise NotHereError(
            f"{btf}: none. Linux 5.8 (EL 8.6) or newer is needed, built with CONFIG_DEBUG_INFO_BTF"
        )


def essence(said: str) -> str:
    """Return the line with the reason from libbpf's messages, "" without messages.

    The verifier's reason is the last line before its statistics. Else the first message is used.
    """
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    for number, line in enumerate(lines[1:]):
        if re.match(r"processed \d+ insns", line):
            return lines[number]
    first = next(iter(lines), "")
    return re.sub(r"^libbpf: ", "", first)


def make_error(code: int, what: str, said: str, status: bytes = b"") -> CcagentError:
    """Return the error for an errno.

    what: the failed action. said: messages of libbpf. status: of this process, see proc(5).
    """
    reason = essence(said)
    name = os.strerror(code)
    detail = f": {reason}" if reason else ""
    if code in {errno.EPERM, errno.EACCES} and "processed " not in said:
        from ccagent.machine.procfs.process_files import describe_lack

        lack = describe_lack(status, *_NEEDED)
        return NotPermittedError(f"{what}: {name}: {lack}{detail}")
    if code == _ENOTSUPP:
        return ProgramError(f"{what}: {UNATTACHABLE}")
    if code in {errno.ENOENT, errno.ESRCH}:
        return NotHereError(f"{what}: {name}{detail}")
    return ProgramError(f"{what}: the kernel or libbpf refuses it: {reason or name}")


@cache
def open_libbpf(names: tuple[str, ...] = LIBRARIES) -> ctypes.CDLL:
    """Load the library. Raise NotHereError if it is not installed."""
    for name in names:
        try:
            return ctypes.CDLL(name, use_errno=True)
        except OSError:
            continue
    raise NotHereError(
        f"libbpf is not installed ({', '.join(names)}): the package libbpf (EL), libbpf1 (Debian)"
    )


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
