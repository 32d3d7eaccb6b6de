r"""The job of a control group: the only place that knows how Slurm names and nests them.

Only names in directories of root are believed: users may have control groups of their own, in
user@UID.service and below their own jobs.

    v1  memory/slurm/uid_5002/job_13/step_0; slurm_NODE if one machine has several slurmd
    v2  system.slice/slurmstepd.scope/job_13/step_0/user/task_0; NODE_slurmstepd.scope likewise;
        since Slurm 25.11 in any slice (CgroupSlice); since 26.05 a SLUID instead of `job_13`
        (s5K1KKYAYG5D00), unless CgroupJobIdPaths=yes

slurmstepd is in `.../job_13` (v1) or `.../job_13/step_0/slurm` (v2). The title of the slurmstepd of
a step has the number of a job that is named by a SLUID. Sources: src/plugins/cgroup,
src/common/sluid.c and src/slurmd/slurmstepd/slurmstepd.c of Slurm.

A virtual machine of libvirt is in machine.slice/machine-qemu\x2d1\x2dNAME.scope. Its job is in
the metadata of its definition, which libvirt keeps in a file of root.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from os.path import basename, dirname
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import CcagentError, NotHereError
from ccagent.log import logger, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ccagent.machine.node import Node

ROOT = "sys/fs/cgroup"

V2 = "v2"
"""Name for the hierarchy of version 2, with all controllers."""

_MOST_JOBS = 10_000
_REPORTED_AFTER = 10.0
"""Seconds after which an unknown directory is logged: Slurm creates it before slurmstepd enters."""
_LOGGED = float("inf")

# systemd gives each user a service in `user.slice`. No slice is delegated to a user.
_SLICE = r"(?!user(?:-[0-9]+)?\.slice)[^/\n]+\.slice"
_SCOPE = r"(?:([^/\n]+)_)?slurmstepd\.scope"
_SLURM = r"slurm(?:_([^/\n]+))?"
_USER = r"uid_([0-9]{1,10})"
_JOB = r"job_([0-9]{1,19})"
_SLUID = r"s[0-9A-HJKMNP-TV-Z]{13}"
_WITHOUT_JOB = frozenset({"system", "slurmd"})
"""Directories of a scope for new slurmstepd, and for a slurmd that was not started by systemd."""

# For a reader in a container, paths outside of its cgroup start with `/..`, once per level that
# they do not share: cgroup_namespaces(7). No directory has this name.
_PATH = re.compile(
    rf"((?:/\.\.)*/{_SLURM}/{_USER}|(?:(?:/\.\.)+(?:/{_SLICE})*|(?:/{_SLICE})+)/{_SCOPE})"
    rf"/({_JOB}|({_SLUID}))(?:/step_([0-9a-z+]{{1,22}})(?![^/])|/|$)"
    .encode()
)  # fmt: skip

# Slurm's directories where no release has them on a host, such as those of a slurmd in a container,
# or with other names of jobs. Users have groups of their own in user.slice and below a job.
_OTHER_PATH = re.compile(
    rb"^[^:\n]*:[^:\n]*:(?!/user\.slice/)((?:/[^/\n]+)*/(?:(?:[^/\n]+_)?slurmstepd\.scope"
    rb"|slurm(?:_[^/\n]+)?/uid_[0-9]+)/(?!(?:system|slurmd)$)[^/\n]+)",
    re.MULTILINE,
)

# Titles of slurmstepd: [13.batch], [13.0], [13.0+1] for a heterogeneous step, [13.batch stepmgr].
# Blanks overwrite the rest of the original command line.
_TITLE = re.compile(
    rb"slurmstepd: \[([1-9][0-9]{0,9})\.(extern|batch|interactive|[0-9]{1,10})(?:\+[0-9]{1,10})?"
    rb"(?: stepmgr)?\][ \0\n]*"
)
_MACHINE = re.compile(rb"/machine\.slice/(machine-qemu\\x2d[0-9]+\\x2d[^/\n]+\.scope)(?![^/])")
_MACHINE_SCOPE = re.compile(r"machine-qemu\\x2d([0-9]+)\\x2d(.+)\.scope")
_DOMAIN = re.compile(rb"<domain\s[^<>]*\bid=(['\"])([0-9]+)\1")
_NO_LETTER = re.compile(r"[^0-9A-Za-z]")
_LONGEST_MACHINE = 63
"""Characters of `qemu-NUMBER-NAME` from which libvirt may have cut it."""
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")
MACHINE_SLICE = "machine.slice"
MACHINE_STATES = "run/libvirt/qemu"
"""Directory of libvirt's pid files and states of machines; both are root's."""

MACHINE_METADATA = "urn:ccagent:machine"
"""Namespace of the element `machine` in a machine's metadata; its attribute `job` is Slurm's."""

_METADATA = re.compile(
    rb"<([A-Za-z_][\w.-]*):machine\s[^<>]*?\bjob=(['\"])([1-9][0-9]{0,9})\2[^<>]*>"
)
_ALL_ROOT = re.compile(rb"^Uid:\t0\t0\t0\t0$", re.MULTILINE)


class JobDirectory(NamedTuple):
    """A control group of a job.

    controller: of version 1, or `v2`. uid: -1 if the path does not contain it. slurmd: the node
    name of the slurmd that created it, if one machine has several; else empty. machine: the virtual
    machine of the job that has it; else empty.
    """

    job: int
    controller: str
    path: str
    uid: int
    slurmd: str
    machine: str = ""


class CgroupPath(NamedTuple):
    """A job by the name of its control group.

    job: 0 if the name has none. step: as in CgroupMembership. directory: that of the job in
    version 2, empty if it is outside of the reader's cgroup namespace. is_sluid: the name of the
    directory is a SLUID. machine: instead of a job, the scope of a virtual machine. is_other: no
    known release makes this directory of a job, so its job is unknown.
    """

    job: int
    step: str
    directory: str
    is_sluid: bool
    machine: str = ""
    is_other: bool = False


class CgroupMembership(NamedTuple):
    """The job and container of a process.

    job: Slurm's raw job id, 0 for none; step: `0`, `batch`, `extern`..., empty for none. container:
    True for a process in a container. is_unknown: it is in a job whose number was not found.
    """

    job: int
    step: str
    container: bool = False
    is_unknown: bool = False


NO_MEMBERSHIP = CgroupMembership(0, "")


class Step(NamedTuple):
    """A job step: raw job id, and `extern`, `batch`, `interactive` or the step number."""

    job: int
    name: str


def job_directories(
    node: Node,
    controllers: Iterable[str],
    complain: Callable[[str, CcagentError], None] | None = None,
) -> list[JobDirectory]:
    """Return the control groups of these version 1 controllers; of version 2 if none exist.

    The scopes of a job's virtual machines are among them. A directory that can't be listed is
    omitted, and `complain` gets the pattern and the error. Raise NotHereError if Slurm has created
    no control group, and no machine is of a job.
    """
    lister = _Lister(node, complain)
    found = [each for controller in controllers for each in _of_v1(lister, controller)]
    if not found:
        found = list(_of_v2(lister, node))
    found += _of_machines(node, controllers)
    if not found and not lister.has_seen_slurm:
        raise NotHereError(f"/{ROOT}: Slurm has made no control groups")
    return found


def known_directories(node: Node, controllers: Iterable[str]) -> list[JobDirectory]:
    """Return what `job_directories` does; none if that fails."""
    try:
        return job_directories(node, controllers)
    except CcagentError:
        return []


def find_membership(node: Node, content: bytes) -> CgroupMembership:
    """Return the job of a process from the content of its /proc/PID/cgroup."""
    path = parse_cgroup(content)
    if path is not None and path.machine:
        return _membership_of_machine(node, path.machine)
    if path is not None and path.is_other:
        _note_other_path(node, path.directory)
        return CgroupMembership(0, "", is_unknown=True)
    if path is None or (path.directory and not _is_roots(node, dirname(path.directory))):
        return NO_MEMBERSHIP
    job = _find_job(node, path.directory) if path.is_sluid else path.job
    if not job:
        _note_unknown(node, path.directory)
    return CgroupMembership(job, path.step, is_unknown=not job)


def job_of_process(node: Node, pid: int) -> int:
    """Return the job of a process; 0 if it is in none, or has ended."""
    try:
        return find_membership(node, node.read_single(f"proc/{pid}/cgroup")).job
    except CcagentError:
        return 0


def count_unknown(node: Node) -> int:
    """Return the number of directories below a scope whose job is unknown. May log the first."""
    with suppress(CcagentError):
        job_directories(node, ())
    return len(node.unknown_groups)


def parse_cgroup(content: bytes) -> CgroupPath | None:
    """Parse /proc/PID/cgroup: lines `hierarchy:controllers:path`. Other lines are ignored.

    The first line with a job is used: later controllers have the same job, or are in `/`. Without
    a job, the path of a virtual machine is returned, or one in a form of no known release.
    """
    scope_of_machine: bytes | None = None
    for line in content.splitlines():
        path = line.split(b":", 2)[-1]
        match = _PATH.match(path)
        if match is not None:
            scope, name, job, sluid, step = match.group(1, 5, 6, 7, 8)
            is_visible = match[3] is None and not scope.startswith(b"/..")
            directory = ROOT + os.fsdecode(scope + b"/" + name) if is_visible else ""
            return CgroupPath(int(job or 0), (step or b"").decode("ascii"), directory, bool(sluid))
        if scope_of_machine is None and (found := _MACHINE.match(path)) is not None:
            scope_of_machine = found[1]
    if scope_of_machine is not None:
        return CgroupPath(0, "", "", is_sluid=False, machine=os.fsdecode(scope_of_machine))
    other = _OTHER_PATH.search(content) if b"slurm" in content else None
    if other is None:
        return None
    return CgroupPath(0, "", ROOT + os.fsdecode(other[1]), is_sluid=False, is_other=True)


def machine_of_scope(name: str) -> str:
    r"""Return the machine of a scope such as `machine-qemu\x2d1\x2dNAME.scope`, or ""."""
    match = _MACHINE_SCOPE.fullmatch(name)
    return "" if match is None else _ESCAPED.sub(lambda each: chr(int(each[1], 16)), match[2])


def machine_scopes(node: Node, controllers: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield name, controller and directory for each scope of a virtual machine.

    controllers: of version 1; version 2 is always included. Only a slice of root is believed.
    """
    for controller in (V2, *controllers):
        top = f"{ROOT if controller == V2 else f'{ROOT}/{controller}'}/{MACHINE_SLICE}"
        try:
            scopes = sorted(node.list(top)) if _is_roots(node, top) else []
        except CcagentError:
            continue
        for scope in scopes:
            name = machine_of_scope(scope)
            if name and "/" not in name:
                yield name, controller, f"{top}/{scope}"


def parse_machine_job(state: bytes) -> int:
    """Return the job in the metadata of a machine's definition (XML of libvirt); 0 without one.

    libvirt writes `<` and `>` of values escaped, so no value looks like an element.
    """
    metadata = state.partition(b"<metadata>")[2].partition(b"</metadata>")[0]
    match = _METADATA.search(metadata)
    if match is None:
        return 0
    names = re.escape(match[1])
    space = re.search(rb"\bxmlns:" + names + rb"=['\"]([^'\"]*)['\"]", metadata)
    is_ours = space is not None and space[1] == MACHINE_METADATA.encode()
    return int(match[3]) if is_ours else 0


def _membership_of_machine(node: Node, scope: str) -> CgroupMembership:
    """Return the job of a machine. Only names in a slice of root are believed."""
    is_roots = _is_roots(node, f"{ROOT}/{MACHINE_SLICE}")
    job = _find_machine_job(node, scope) if is_roots else 0
    return CgroupMembership(job, "") if job else NO_MEMBERSHIP


def _of_machines(node: Node, controllers: Iterable[str]) -> Iterator[JobDirectory]:
    """Yield the scopes of the machines of jobs, and forget the jobs of those that have ended."""
    there: set[str] = set()
    for name, controller, path in machine_scopes(node, controllers):
        scope = basename(path)
        there.add(scope)
        if job := _find_machine_job(node, scope):
            yield JobDirectory(job, controller, path, -1, "", name)
    for scope in [key for key in [*node.job_numbers] if "/" not in key and key not in there]:
        node.job_numbers.pop(scope, None)


def _find_machine_job(node: Node, scope: str) -> int:
    """Return the job of the machine of a scope; 0 without one. It is kept as long as the scope."""
    name = machine_of_scope(scope)
    job = node.job_numbers.get(scope, 0)
    if not job and name and "/" not in name:
        with suppress(CcagentError):
            job = parse_machine_job(_read_state(node, scope, name))
        _keep_job(node, scope, job)
    return job


def _read_state(node: Node, scope: str, name: str) -> bytes:
    """Return libvirt's state of the machine of a scope. Raise CcagentError if it can't be read.

    libvirt omits underscores and other characters of a machine's name in the scope, and cuts long
    names, but the state has the number in the scope. Source: src/hypervisor/domain_driver.c of
    libvirt.
    """
    match = _MACHINE_SCOPE.fullmatch(scope)
    number = "" if match is None else match[1]
    letters = _NO_LETTER.sub("", name)
    is_cut = len(f"qemu-{number}-{name}") >= _LONGEST_MACHINE
    for file in sorted(node.list(MACHINE_STATES), key=lambda file: file != f"{name}.xml"):
        own = _NO_LETTER.sub("", file.removesuffix(".xml"))
        if file.endswith(".xml") and (own == letters or (is_cut and own.startswith(letters))):
            state = node.read(f"{MACHINE_STATES}/{file}")
            domain = _DOMAIN.search(state)
            if domain is None or domain[2] == number.encode():
                return state
    raise NotHereError(f"/{MACHINE_STATES}: no state of machine {name}")


def parse_title(cmdline: bytes) -> Step | None:
    """Parse /proc/PID/cmdline of slurmstepd; return None if it names no step."""
    match = _TITLE.fullmatch(cmdline)
    return None if match is None else Step(int(match[1]), match[2].decode("ascii"))


def is_all_root(status: bytes) -> bool:
    """Return whether all four user ids in /proc/PID/status are root's.

    For a set-user-ID program, the real user id is that of the calling user.
    """
    return _ALL_ROOT.search(status) is not None


def read_step(node: Node, pid: int | str) -> Step | None:
    """Return the step of a slurmstepd; None before its title is set, or if it is not root's."""
    path = f"proc/{pid}"
    try:
        if node.owner(path) != 0:
            return None
        step = parse_title(node.read_single(f"{path}/cmdline"))
        if step is None or not is_all_root(node.read_single(f"{path}/status")):
            return None
    except CcagentError:
        return None
    return step


def _find_job(node: Node, directory: str) -> int:
    """Return the job of a directory that is named by a SLUID; 0 if it is unknown.

    The number is kept as long as the directory is there, also without slurmstepd: no other job gets
    the same SLUID.
    """
    job = node.job_numbers.get(directory, 0) or _read_job(node, directory)
    _keep_job(node, directory, job)
    return job


def _keep_job(node: Node, directory: str, job: int) -> None:
    jobs = node.job_numbers
    if job and directory not in jobs:
        if len(jobs) >= _MOST_JOBS:
            jobs.pop(next(iter(jobs)), None)
        jobs[directory] = job


def _note_unknown(node: Node, directory: str) -> None:
    """List the scopes when a directory is first seen without a job, and when it is to be logged."""
    since = node.unknown_groups.get(directory)
    due = node.clock.monotonic() - _REPORTED_AFTER
    if since is None or (since <= due and _LOGGED not in [*node.unknown_groups.values()]):
        count_unknown(node)


def _note_other_path(node: Node, directory: str) -> None:
    """Note a directory of no known release: by itself if a listing finds it, else its parent."""
    parent = dirname(directory)
    if parent not in node.unknown_groups:
        _note_unknown(node, directory)
        if directory in node.unknown_groups:
            return
    _report_unknown(node, parent)


def _end_listing(node: Node, scope: str, there: set[str], unknown: set[str]) -> None:
    """Forget the removed directories of a scope. Log if one stays unknown, for the first of all."""
    for known, kept in ((node.job_numbers, there), (node.unknown_groups, unknown)):
        for path in [each for each in [*known] if dirname(each) == scope and each not in kept]:
            known.pop(path, None)
    for path in sorted(unknown):
        _report_unknown(node, path)


def _report_unknown(node: Node, path: str) -> None:
    """Log a directory that has been unknown for a while, if no other was logged."""
    now = node.clock.monotonic()
    since = node.unknown_groups.setdefault(path, now)
    if now >= since + _REPORTED_AFTER and _LOGGED not in [*node.unknown_groups.values()]:
        node.unknown_groups[path] = _LOGGED
        logger.warning(
            "the Slurm job of /%s is unknown: what is in it is in no job; see ccagent doctor",
            printable(path),
        )


def _read_job(node: Node, directory: str) -> int:
    """Return the job of a directory by the slurmstepd of its steps; 0 if it is unknown."""
    try:
        steps = node.directories(directory) if directory else ()
    except CcagentError:
        return 0
    for step in steps:
        try:
            pids = node.read(f"{directory}/{step}/slurm/cgroup.procs").split()
        except CcagentError:
            continue
        for pid in pids:
            found = read_step(node, pid.decode("ascii", "replace"))
            if found is not None:
                return found.job
    return 0


def _is_roots(node: Node, directory: str) -> bool:
    """Return whether a directory has the owner of all control groups, or can't be seen."""
    try:
        return node.owner(directory) == node.owner(ROOT)
    except CcagentError:
        return True


class _Lister:
    """Lists names that match a pattern. has_seen_slurm: true also if a listing failed."""

    def __init__(self, node: Node, complain: Callable[[str, CcagentError], None] | None) -> None:
        self.has_seen_slurm = False
        self._node = node
        self._complain = complain

    def names(self, directory: str, form: re.Pattern[str]) -> list[tuple[str, str]]:
        """Return the matching names in a directory, each with the first group of the match."""
        try:
            # The files of a scope are many, and need not match.
            names = (self._node.directories if form is _ANY_NAME else self._node.list)(directory)
        except NotHereError:
            return []
        except CcagentError as error:
            self.has_seen_slurm = True
            if self._complain is not None:
                self._complain(form.pattern, error)
            return []
        matches = ((name, form.fullmatch(name)) for name in sorted(names))
        return [(name, match.group(1) or "") for name, match in matches if match is not None]


_SLURM_NAME, _USER_NAME, _JOB_NAME = map(re.compile, (_SLURM, _USER, _JOB))
_SLUID_NAME, _ANY_NAME = re.compile(_SLUID), re.compile("((?s:.*))")
_SLICE_OR_SCOPE = re.compile(f"({_SLICE})|{_SCOPE}")


def _of_v1(lister: _Lister, controller: str) -> Iterator[JobDirectory]:
    for slurm, slurmd in lister.names(f"{ROOT}/{controller}", _SLURM_NAME):
        lister.has_seen_slurm = True
        top = f"{ROOT}/{controller}/{slurm}"
        for user, uid in lister.names(top, _USER_NAME):
            for name, job in lister.names(f"{top}/{user}", _JOB_NAME):
                yield JobDirectory(int(job), controller, f"{top}/{user}/{name}", int(uid), slurmd)


def _of_v2(lister: _Lister, node: Node, top: str = ROOT) -> Iterator[JobDirectory]:
    """Yield the jobs below a slice."""
    for name, is_slice in lister.names(top, _SLICE_OR_SCOPE):
        path = f"{top}/{name}"
        if is_slice:
            yield from _of_v2(lister, node, path)
        if is_slice or top == ROOT or not _is_roots(node, path):
            continue
        lister.has_seen_slurm = True
        slurmd = name.rpartition("slurmstepd.scope")[0][:-1]
        there: set[str] = set()
        unknown: set[str] = set()
        for below, _ in lister.names(path, _ANY_NAME):
            directory = f"{path}/{below}"
            there.add(directory)
            match = _JOB_NAME.fullmatch(below)
            is_sluid = _SLUID_NAME.fullmatch(below) is not None
            job = int(match[1]) if match else _find_job(node, directory) if is_sluid else 0
            if job:
                yield JobDirectory(job, V2, directory, -1, slurmd)
            elif below not in _WITHOUT_JOB:
                unknown.add(directory)
        _end_listing(node, path, there, unknown)
