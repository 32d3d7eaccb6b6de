"""Checks of what several agents require of the machine: programs, control groups, BPF, cards.

The cards of a vendor must be the same for its driver, the PCI bus and its library. Source for
control groups: cgroups(7); Documentation/admin-guide/cgroup-v2.rst of Linux.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from os.path import dirname
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import CcagentError, NotHereError, NotPermittedError
from ccagent.log import printable
from ccagent.machine.bpf import pins
from ccagent.machine.bpf.libbpf import BTF, open_libbpf
from ccagent.machine.cgroup.jobs import ROOT, job_directories, parse_cgroup
from ccagent.machine.checks import Check, CheckResult
from ccagent.machine.gpu.gpus import Gpus
from ccagent.machine.gpu.vendor import find_cards, gpu_vendor_class, vendor_directories
from ccagent.machine.interpreter import install_command
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.mountinfo import MOUNTINFO, parse_mountinfo
from ccagent.machine.program import ENVIRONMENT
from ccagent.machine.slurm_environment import run_slurm

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ccagent.machine.node import Node

_PROGRAM_SECONDS, _CARD_SECONDS = 5.0, 10.0
"""Time limits in seconds: of a program, of a vendor's library."""

_OUTPUT_LIMIT = 4 * 1024 * 1024
_LONGEST = 120
_AREAS = {"sacct": "slurm", "squeue": "slurm", "sinfo": "slurm", "scontrol": "slurm",
          "lctl": "lustre"}  # fmt: skip
_FIXES = {
    "slurm": "install Slurm's client programs, or set the path of the program",
    "lustre": "install the Lustre utilities of servers and clients, or set lctl",
    "topology": "install hwloc, or set the path of the program",
}

_CGROUPS = f"/{ROOT}"
_WANTED_V1 = ("memory", "cpuacct", "blkio")
_WANTED_V2 = ("memory", "cpu", "io")
_SHOWN_V1 = frozenset({*_WANTED_V1, "cpu", "cpuset", "devices", "freezer", "pids"})
_PARAMETERS = {
    "memory": "cgroup_enable=memory",
    "cpuacct": "the kernel's CONFIG_CGROUP_CPUACCT",
    "blkio": "the kernel's CONFIG_BLK_CGROUP",
    "cpu": "the kernel's CONFIG_CGROUP_SCHED",
    "io": "the kernel's CONFIG_BLK_CGROUP",
}

_ITERATOR = f"{pins.DIRECTORY.strip('/')}/{pins.TASKS}"
_LOCKDOWN = "sys/kernel/security/lockdown"
_RELEASE = re.compile(r"(\d{1,4})\.(\d{1,4})")
_FIRST = (5, 8)

_VENDORS = {"nvidia": "0x10de", "amd": "0x1002"}
_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
"""VGA, 3D, other display, and processing accelerators (PCI Code and ID Assignment)."""
_PACKAGES = {"nvidia": ("pynvml", "nvidia-ml-py"), "amd": ("amdsmi", "amdsmi")}
_PCI_DEVICES = "sys/bus/pci/devices"


def require_program(node: Node, program: str, impact: str = "", *, is_vital: bool = False) -> Check:
    """Return the check that a program exists, and prints its version if it is a known one."""
    find = partial(_find_program, node, program)
    return Check(find_area(program), program, find, impact, is_vital)


def require_answer(
    node: Node, subject: str, command: Sequence[str], impact: str, *, is_vital: bool = False
) -> Check:
    """Return the check that a command succeeds. The command must be read-only.

    The first line of its output is shown. A separate check reports a missing program.
    """
    find = partial(_find_answer, node, command)
    return Check(find_area(command[0]), subject, find, impact, is_vital, is_query=True)


def find_area(program: str) -> str:
    """Return the area of a program by its file name."""
    name = os.path.basename(program)
    if name.startswith(("lstopo", "hwloc")):
        return "topology"
    return _AREAS.get(name, "programs")


def assess_program(area: str, outcome: str | CcagentError) -> CheckResult:
    """Return the result for a command's first line of output, or for its error."""
    if isinstance(outcome, NotHereError):
        return CheckResult("missing", str(outcome), _FIXES.get(area, "install it, or set its path"))
    if isinstance(outcome, CcagentError):
        text = str(outcome)
        return CheckResult("problem", _shorten(text), _choose_fix(area, text))
    return CheckResult("good", outcome)


def _find_program(node: Node, program: str) -> CheckResult:
    area = find_area(program)
    if area != "programs":
        return assess_program(area, _run(node, (program, "--version")))
    path = os.environ.get("PATH", ENVIRONMENT["PATH"])
    place = shutil.which(program, path=path)
    return assess_program(area, place or NotHereError(f"{program}: no such program"))


def _find_answer(node: Node, command: Sequence[str]) -> CheckResult | None:
    outcome = _run(node, command)
    if isinstance(outcome, NotHereError):
        return None
    return assess_program(find_area(command[0]), outcome)


def _run(node: Node, command: Sequence[str]) -> str | CcagentError:
    """Return the first line of a command's output, or its error."""
    try:
        output = run_slurm(node, command, time_limit=_PROGRAM_SECONDS, output_limit=_OUTPUT_LIMIT)
    except CcagentError as error:
        return error
    line = next(iter(output.decode("utf-8", "replace").strip().splitlines()), "")
    return line.strip()[:_LONGEST] or "it answers"


def _shorten(text: str) -> str:
    """Return the program's name and the last line of an error."""
    *before, last = text.strip().splitlines() or [""]
    if not before:
        return last[: 2 * _LONGEST]
    program, _, _ = before[0].partition(":")
    return f"{program}: {last.removeprefix(f'{program}: ')}"[: 2 * _LONGEST]


def _choose_fix(area: str, text: str) -> str:
    if "not finished after" in text:
        return "find out what it waits for: a name server, a daemon that is down?"
    if area == "slurm" and "configuration source" in text:
        return "give this node slurm.conf, or set SLURM_CONF where ccagent is started"
    return "run it as this user, and correct what it complains of"


def check_cgroups(node: Node, impact: str = "") -> Iterator[Check]:
    """Yield the checks of an agent that reads the control groups of jobs."""
    yield Check("control groups", "control groups", partial(find_cgroups, node), impact)
    yield Check("control groups", "control groups of jobs", partial(find_job_groups, node), impact)


def find_cgroups(node: Node) -> CheckResult:
    """Return the version of control groups, and the missing controllers."""
    mounts = read_parsed(node, MOUNTINFO, parse_mountinfo)
    v2 = [mount.point for mount in mounts if mount.type == "cgroup2"]
    if _CGROUPS in v2:
        controllers = node.read_text(f"{ROOT}/cgroup.controllers").split()
        return _assess_controllers("version 2", controllers, _WANTED_V2)
    below = [m for m in mounts if m.type == "cgroup" and m.point.startswith(f"{_CGROUPS}/")]
    v1 = {option for mount in below for option in mount.options.split(",")}
    if v1 & _SHOWN_V1:
        has_both = any(point.startswith(f"{_CGROUPS}/") for point in v2)
        version = "version 1 (and 2 beside it, for systemd)" if has_both else "version 1"
        return _assess_controllers(version, sorted(v1 & _SHOWN_V1), _WANTED_V1)
    return CheckResult(
        "missing",
        f"none are mounted below {_CGROUPS}",
        "mount them there (systemd does); in a container hand on the host's",
    )


def find_job_groups(node: Node) -> CheckResult:
    """Return the number of Slurm jobs with control groups."""
    try:
        found = job_directories(node, _WANTED_V1)
    except NotHereError:
        if place := _find_other_place(node):
            return CheckResult(
                "problem",
                f"Slurm makes them in /{printable(place)}, where no known release has them:"
                " what is in them counts for no job",
                "if slurmd runs in a container, run ccagent in it, or start slurmd on the host",
            )
        return CheckResult(
            "missing",
            "Slurm has made none on this node",
            "on a compute node: ProctrackType=proctrack/cgroup, TaskPlugin=task/cgroup and "
            "JobAcctGatherType=jobacct_gather/cgroup in slurm.conf",
        )
    jobs = len({directory.job for directory in found})
    if unknown := sorted(node.unknown_groups):
        return CheckResult(
            "problem",
            f"Slurm makes them; {jobs} jobs have one now, and the job of {len(unknown)} is unknown,"
            f" such as {printable('/' + unknown[0])}: what is in them counts for no job",
            "show /proc to this user (hidepid); remove directories that Slurm has left; or set "
            "CgroupJobIdPaths=yes in cgroup.conf (Slurm 26.05.2)",
        )
    return CheckResult("good", f"Slurm makes them; {jobs} jobs have one now")


def _find_other_place(node: Node) -> str:
    """Return a directory of Slurm that a process is in, if its form is of no known release."""
    for name in node.list("proc"):
        with suppress(CcagentError):
            path = parse_cgroup(node.read(f"proc/{name}/cgroup")) if name.isdecimal() else None
            if path is not None and path.is_other:
                return dirname(path.directory)
    return ""


def _assess_controllers(version: str, there: Sequence[str], wanted: Sequence[str]) -> CheckResult:
    lacks = [name for name in wanted if name not in there]
    found = f"{version} with {', '.join(there) or 'no controllers'}"
    if not lacks:
        return CheckResult("good", found)
    ways = "; ".join(dict.fromkeys(f"{name}: {_PARAMETERS[name]}" for name in lacks))
    fix = f"turn them on when the kernel is started or built: {ways}"
    return CheckResult("problem", f"{found}, but not {', '.join(lacks)}", fix)


class KernelFacts(NamedTuple):
    """Properties of the kernel that the task iterator requires.

    pinned: None if it is not pinned, else whether this user may read it. library: reason for a
    missing libbpf, "" if it is installed. lockdown: the mode, "" if unknown. has_own_pids: /proc
    belongs to a pid namespace below the initial one.
    """

    release: str
    has_btf: bool
    library: str
    lockdown: str
    pinned: bool | None
    has_own_pids: bool = False


def require_task_iterator(node: Node, impact: str) -> Check:
    """Return the check of the task iterator."""
    return Check("kernel", "task iterator", partial(find_task_iterator, node), impact)


def find_task_iterator(node: Node) -> CheckResult:
    """Check whether the task iterator is pinned and readable, else whether it could be loaded."""
    return assess_kernel(
        KernelFacts(
            release=node.read_text("proc/sys/kernel/osrelease"),
            has_btf=node.is_readable(BTF.lstrip("/")),
            library=_find_library() if node.is_live else "",
            lockdown=parse_lockdown(node.read_text(_LOCKDOWN)),
            pinned=_is_pinned(node),
            has_own_pids=_has_own_pids(node),
        )
    )


def is_iterator_usable(node: Node) -> bool:
    """Return whether this user can read the iterator, and its pids are the same as in /proc."""
    return bool(_is_pinned(node)) and not _has_own_pids(node)


def parse_lockdown(text: str) -> str:
    """Parse `none [integrity] confidentiality`. Return the mode in brackets; "" without one."""
    match = re.search(r"\[(\w+)\]", text)
    return match[1] if match else ""


def is_old(release: str) -> bool:
    """Return whether a release is older than 5.8. EL 8 is excluded: it has backports."""
    match = _RELEASE.match(release)
    return match is not None and (int(match[1]), int(match[2])) < _FIRST and ".el8" not in release


def assess_kernel(kernel: KernelFacts) -> CheckResult:
    """Return the finding for these properties: readable, loadable, or the obstacles."""
    if kernel.has_own_pids:
        return CheckResult(
            "missing",
            "this is a separate pid namespace, and the kernel reports other pids",
            "run ccagent on the node, not in a container; /proc is read instead",
        )
    if kernel.pinned:
        return CheckResult("good", f"/{_ITERATOR} can be read")
    if kernel.pinned is False:
        return CheckResult(
            "problem",
            f"/{_ITERATOR} is pinned, but this user may not read it",
            "add the user to its group, or pin it for the service's group",
        )
    lacks = [
        text
        for is_lacking, text in (
            (is_old(kernel.release), f"kernel {kernel.release} is older than 5.8"),
            (not kernel.has_btf, f"the kernel has no BTF ({BTF})"),
            (bool(kernel.library), kernel.library),
            (kernel.lockdown == "confidentiality", "lockdown=confidentiality forbids BPF reads"),
        )
        if is_lacking
    ]
    if not lacks:
        found = f"not pinned; kernel {kernel.release} with BTF and libbpf supports it"
        fix = "optional, as root: ccagent kernel load (a package: enable ccagent-kernel)"
        return CheckResult("missing", found, fix)
    fix = "processes are read from /proc instead, which works"
    if lacks == [kernel.library]:
        fix = "install it, then as root: ccagent kernel load"
    return CheckResult("missing", f"not pinned; {'; '.join(lacks)}", fix)


def _has_own_pids(node: Node) -> bool:
    try:
        return node.inode("proc/self/ns/pid") != pins.FIRST_PID_NAMESPACE
    except CcagentError:
        return False


def _is_pinned(node: Node) -> bool | None:
    try:
        node.owner(_ITERATOR)
    except NotHereError:
        return None
    except NotPermittedError:
        return False
    return node.is_readable(_ITERATOR)


def _find_library() -> str:
    try:
        open_libbpf()
    except NotHereError as error:
        return str(error)
    return ""


def check_vendors(node: Node, vendors: Iterable[str]) -> Iterator[Check]:
    """Yield a check for the cards of each vendor."""
    for vendor in vendors:
        find = partial(examine_cards, node, vendor)
        yield Check("GPUs", f"{vendor} cards", find, f"GPUs of {vendor}")


def examine_cards(node: Node, vendor: str) -> CheckResult:
    """Return the cards of a vendor, and whether its library reports all of them."""
    driven = find_cards(node, vendor_directories(vendor))
    module, package = _PACKAGES.get(vendor, ("", ""))
    missing = package if module and find_spec(module) is None else ""
    if not driven:
        return assess_cards(on_bus=_find_on_bus(node, vendor), package=missing)
    errors: list[str] = []
    gpus = Gpus(node, (vendor,), _CARD_SECONDS)
    try:
        gpus.ask("describe")
        cards = gpus.descriptions(errors)
    finally:
        gpus.close()
    models = [
        f"{card.model} (driver {card.driver})" if card.driver else card.model for card in cards
    ]
    if not cards and not errors:
        errors = [f"{gpu_vendor_class(vendor).title}: it reports none"]
    return assess_cards(driven=driven, reported=models, errors=errors, package=missing)


def assess_cards(
    *,
    driven: Sequence[str] = (),
    on_bus: Sequence[str] = (),
    reported: Sequence[str] = (),
    errors: Sequence[str] = (),
    package: str = "",
) -> CheckResult:
    """Return the result for the addresses that the driver and the bus list.

    reported: models by the library. package: the Python package of the library, if it is missing.
    """
    if errors:
        fix = (
            "check that the library is of the driver's version, and that this user may open the "
            "device files (in a service: PrivateDevices=no and DeviceAllow=)"
        )
        if package:
            fix = f"install its Python package: {install_command(package)}"
        return CheckResult("problem", f"{len(driven)} by the driver; {'; '.join(errors)}", fix)
    if len(reported) < len(driven):
        found = f"{len(driven)} by the driver, {len(reported)} by its library"
        return CheckResult(
            "problem", found, "see the kernel's log (dmesg) for the cards that are missing"
        )
    if driven:
        return CheckResult("good", f"{len(driven)}: {', '.join(dict.fromkeys(reported))}")
    if on_bus:
        found = f"{', '.join(on_bus)} on the PCI bus, but no driver has any"
        return CheckResult(
            "problem", found, "load the vendor's driver, if these cards are for jobs"
        )
    found = f"none; its Python package {package} is missing too" if package else "none"
    return CheckResult("missing", found)


def _find_on_bus(node: Node, name: str) -> list[str]:
    """Return the addresses of cards of a vendor, by vendor and class on the PCI bus."""
    vendor = _VENDORS.get(name)
    return [
        address
        for address in node.list_names(_PCI_DEVICES)
        if vendor is not None
        and node.read_text(f"{_PCI_DEVICES}/{address}/vendor") == vendor
        and node.read_text(f"{_PCI_DEVICES}/{address}/class").startswith(_CLASSES)
    ]
