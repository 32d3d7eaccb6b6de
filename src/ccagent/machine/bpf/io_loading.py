"""Loading and pinning of the programs that count I/O and network traffic by job, as root.

A program is omitted if the kernel lacks its function or refuses it. The others are loaded.
"""

from __future__ import annotations

import os
import re
import struct
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import CcagentError, NotHereError, NotPermittedError, ProgramError, raise_for
from ccagent.machine.bpf import pins
from ccagent.machine.bpf.io_records import (
    HOOKS,
    OF_OLD_KERNELS,
    SYSTEM_CALL,
    TIMERS,
    features_of,
    select_hooks,
)
from ccagent.machine.bpf.libbpf import UNATTACHABLE, Libbpf, Object, read_functions
from ccagent.machine.cgroup.jobs import V2, job_directories
from ccagent.machine.node import Node

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccagent.machine.bpf.io_records import IoHook


_CHOSEN = re.compile(r"\((\w+)\)")
_ARGUMENT = re.compile(r"\bpreempt=(\w+)")
_NEVER = frozenset({"none", "voluntary"})
_CONFIGURED = (
    ("CONFIG_PREEMPT_NONE=y", "none"),
    ("CONFIG_PREEMPT_VOLUNTARY=y", "voluntary"),
    ("CONFIG_PREEMPT_LAZY=y", "lazy"),
    ("CONFIG_PREEMPT=y", "full"),
)


def is_preemptible(node: Node) -> bool:
    """Return whether the kernel preempts kernel code; True if unknown.

    Such a kernel sometimes skips BPF programs.
    """
    version = node.read_text("proc/sys/kernel/version")
    if "PREEMPT" not in version:
        return False
    return find_mode(node, version) not in _NEVER


def find_mode(node: Node, version: str) -> str:
    """Return `none`, `voluntary`, `lazy` or `full`; "" if the mode is unknown.

    version: as in /proc/sys/kernel/version. With PREEMPT_DYNAMIC the mode is read from debugfs,
    else from the kernel's command line, else from its configuration.
    """
    if "PREEMPT_DYNAMIC" not in version:
        return "full"
    chosen = _CHOSEN.search(node.read_text("sys/kernel/debug/sched/preempt"))
    if chosen is None:
        chosen = _ARGUMENT.search(node.read_text("proc/cmdline"))
    if chosen is not None:
        return chosen[1]
    release = node.read_text("proc/sys/kernel/osrelease")
    for path in (f"boot/config-{release}", f"lib/modules/{release}/config"):
        text = node.read_text(path)
        for line, mode in _CONFIGURED:
            if line in text.splitlines():
                return mode
    return ""


_NAME = "io"
SETTINGS = struct.Struct("<QIIIII4x")
"""struct settings in io_tables.bpf.h.

Features, CPUs, flag for measured times, level, number of levels above, entries of the table `io`.
"""

_MORE_LEVELS = 2
"""Additional levels on kernels that preempt kernel code, see `seen` in io.bpf.c."""

_MAPS = ("io", "network", "requests", "devices", "gone", "entered", "seen", "numbers", "io.bss")

ENTRIES = 1024
_FEWEST_ENTRIES = 64
_NETWORK_ENTRIES = 1024
_LARGEST_MAP = 64 * 1024 * 1024
_VALUE = 30 * 8
_NETWORK_VALUE = 17 * 8
_ALWAYS = ("on_group_removal", "on_fork")
_NEEDED = "bpf_get_current_task_btf"
"""Helper with which the programs find the job of a task."""

_OTHERS = "The programs for processes are loaded"
_FIRST = HOOKS[0]
"""A function that any kernel can attach programs to, if it can at all."""

_FAILED = re.compile(r"prog '(\w+)'|program '(\w+)'")


class IoOptions(NamedTuple):
    """Options for loading the programs for I/O.

    has_time: measure the time of reads and writes. entries: maximum of jobs times file systems.
    is_preemptible: the kernel preempts kernel code; None: detect it.
    """

    has_time: bool = False
    entries: int = ENTRIES
    is_preemptible: bool | None = None


def load_io(
    library: Libbpf,
    content: bytes,
    directory: str,
    options: IoOptions,
) -> dict[str, str]:
    """Load the programs and pin them below `directory`. Return reasons by value that isn't counted.

    Raise the errors of `loading.load`. Nothing stays pinned after an error.
    """
    if options.is_preemptible is None:
        node = Node(hostname="localhost", cluster="local")
        options = options._replace(is_preemptible=is_preemptible(node))
    usable, left_out = _select(library, has_time=options.has_time)
    try:
        os.makedirs(os.path.join(directory, pins.IO_PROGRAMS), 0o700, exist_ok=True)
    except OSError as error:
        raise_for(directory.lstrip("/"), error)
    # Each round removes a program from `usable`, or ends.
    while True:
        try:
            _load_once(library, content, directory, usable, options)
            break
        except CcagentError as error:
            _unpin(directory)
            failed = _failed(library.said(), usable, error)
            if failed == _FIRST.program and UNATTACHABLE in str(error):
                remove_io(directory)
                raise NotHereError(
                    f"io: Linux {os.uname().release} attaches no programs to its functions:"
                    f" aarch64 needs Linux 6.4 or newer. {_OTHERS}"
                ) from error
            # A kernel that does not permit one program permits none.
            if failed is None or len(usable) == 1 or isinstance(error, NotPermittedError):
                remove_io(directory)
                raise
            left_out[usable.pop(failed).counts] = str(error)
    return left_out


def remove_io(directory: str) -> bool:
    """Remove the pinned programs. Return whether any existed."""
    removed = _unpin(directory)
    with suppress(OSError):
        os.rmdir(os.path.join(directory, pins.IO_PROGRAMS))
        removed = True
    return removed


def _select(library: Libbpf, *, has_time: bool) -> tuple[dict[str, IoHook], dict[str, str]]:
    """Return the usable hooks by program name, and reasons by value that is not counted."""
    hooks = HOOKS + (TIMERS if has_time else ())
    functions = read_functions(library, {_NEEDED, *(hook.function for hook in hooks)})
    if _NEEDED not in functions:
        raise NotHereError(
            f"io: Linux {os.uname().release} has no {_NEEDED}: counting I/O needs Linux 5.11 or"
            f" newer. {_OTHERS}"
        )
    usable: dict[str, IoHook] = {}
    left_out: dict[str, str] = {}
    for hook, reason in select_hooks(functions, hooks).items():
        if not reason:
            usable[hook.program] = hook
        elif hook.function not in OF_OLD_KERNELS:
            left_out[hook.counts] = reason
    return usable, left_out


def _load_once(
    library: Libbpf,
    content: bytes,
    directory: str,
    usable: Mapping[str, IoHook],
    options: IoOptions,
) -> None:
    """Load and pin the usable programs, on one or on all levels."""
    cpus = library.possible_cpus()
    entries = min(options.entries, _largest(_VALUE, cpus))
    network_entries = min(_NETWORK_ENTRIES, _largest(_NETWORK_VALUE, cpus))
    features = features_of(frozenset(usable), has_time=options.has_time)
    more = _MORE_LEVELS if options.is_preemptible else 0
    with ExitStack() as stack:
        levels = [stack.enter_context(Object(library, _NAME, content)) for _ in range(more + 1)]
        for level, programs in enumerate(levels):
            constants = (features, cpus, options.has_time, level, more, entries)
            programs.set_constants(SETTINGS.pack(*constants))
            programs.set_entries("io", entries)
            programs.set_entries("network", network_entries)
            for hook in (*HOOKS, *TIMERS):
                if hook.program not in usable or (level and hook in TIMERS):
                    programs.leave_out(hook.program)
                elif hook.function.startswith(SYSTEM_CALL):
                    programs.set_target(hook.program, hook.function)
            if level:
                for name in _ALWAYS:
                    programs.leave_out(name)
                programs.share_maps(levels[0], _MAPS)
            programs.load()
        put_job_numbers(levels[0])
        # All programs are attached before the first is pinned: after an error none is pinned.
        links = {
            pins.IO: (levels[0], levels[0].attach_iterator("read_io", over="io")),
            pins.NETWORK: (levels[0], levels[0].attach_iterator("read_network", over="network")),
        }
        # The program that was attached last runs first: this must be level 0.
        for level, programs in reversed([*enumerate(levels)]):
            names = [name for name, hook in usable.items() if not level or hook not in TIMERS]
            for name in names if level else (*_ALWAYS, *names):
                place = f"{pins.IO_PROGRAMS}/{name}" + (f"_{level}" if level else "")
                links[place] = (programs, programs.attach(name))
        for name, (programs, link) in links.items():
            programs.pin(link, os.path.join(directory, name))


def put_job_numbers(programs: Object) -> None:
    """Put the numbers of running jobs into the map `numbers` of job.bpf.h, before attaching.

    The programs themselves find those of later jobs.
    """
    node = Node(hostname="localhost", cluster="local")
    with suppress(CcagentError):
        for each in job_directories(node, ()):
            if each.controller == V2 and each.job <= 0xFFFFFFFF:
                group, job = struct.pack("=Q", node.inode(each.path)), struct.pack("=I", each.job)
                programs.put("numbers", group, job)


def _largest(value: int, cpus: int) -> int:
    """Return for how many values a map has room, with one for each CPU."""
    return max(_FEWEST_ENTRIES, _LARGEST_MAP // (value * cpus))


def _failed(said: str, usable: Mapping[str, IoHook], error: CcagentError) -> str | None:
    """Return the name of the refused program, from libbpf's messages or the error; else None."""
    for match in _FAILED.finditer(said):
        name = match[1] or match[2]
        if name in usable:
            return name
    for name in usable:
        if str(error).startswith(f"{_NAME}: {name}:"):
            return name
    return None


def _unpin(directory: str) -> bool:
    below = os.path.join(directory, pins.IO_PROGRAMS)
    try:
        paths = [os.path.join(below, name) for name in os.listdir(below)]
    except FileNotFoundError:
        paths = []
    paths += [os.path.join(directory, name) for name in (pins.IO, pins.NETWORK)]
    removed = False
    for path in paths:
        try:
            os.unlink(path)
            removed = True
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ProgramError(f"{path}: {error.strerror}") from error
    return removed
