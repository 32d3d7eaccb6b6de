"""Checks of /proc on trees: hidepid, capabilities, groups, limits."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.sonar.sources.checks import (
    assess_limit,
    check_sources,
    find_limit,
    find_visibility,
    parse_limit,
)
from ccagent.doctor.identity import assess_slurm_name, check_identity, check_slurm_name
from ccagent.errors import NotPermittedError, UnparsableError
from ccagent.machine.checks import CheckResult, find_proc
from ccagent.machine.procfs.process_files import CAPABILITIES, Identity, parse_identity
from tests.support.doctor_site import ALL, BOTH, NONE, PTRACE, found, mounted, status
from tests.support.tree import TreeNode

LIMITS = (
    "Limit                     Soft Limit           Hard Limit           Units     \n"
    "Max processes             192000               192000               processes \n"
    "Max open files            1024                 {hard:20} files     \n"
)


class Guarded(TreeNode):
    """A machine that lets nobody read what is in `closed`, whoever runs the test."""

    closed: tuple[str, ...] = ("io", "fd")

    def read(self, path: str, limit: int = 1 << 24) -> bytes:
        self._refuse(path)
        return super().read(path, limit)

    def list(self, path: str) -> list[str]:
        self._refuse(path)
        return super().list(path)

    def _refuse(self, path: str) -> None:
        if path.rpartition("/")[2] in self.closed:
            raise NotPermittedError(f"/{path}: Permission denied")


def results(node: Guarded, source: str = "auto") -> dict[str, CheckResult]:
    """Return the results for a source of processes, by subject, but without the limits."""
    checks = [each for each in check_sources(node, source) if each.subject != "open files"]
    found = {check.subject: check.find() for check in checks}
    return {subject: result for subject, result in found.items() if result is not None}


@pytest.fixture
def node(tmp_path: Path) -> Guarded:
    node = Guarded(tmp_path)
    node.write("self/status", status())
    node.write("self/mountinfo", mounted())
    node.process(100)
    return node


def test_a_plain_machine_as_an_ordinary_user(node: Guarded) -> None:
    findings = results(node)
    assert {subject: finding.state for subject, finding in findings.items()} == {
        "processes of others": "good",
        "I/O of others": "problem",
        "open files of others": "missing",
    }
    advice = findings["I/O of others"].fix
    assert "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH (with CapabilityBoundingSet= and" in advice


@pytest.mark.parametrize(
    ("options", "identity", "state", "said"),
    [
        ("rw", status(), "good", "without hidepid"),
        ("rw,hidepid=off", status(), "good", "without hidepid"),
        ("rw,hidepid=0", status(), "good", "without hidepid"),
        ("rw,hidepid=1", status(), "problem", "its own processes alone"),
        ("rw,hidepid=2", status(), "problem", "its own processes alone"),
        ("rw,hidepid=invisible", status(), "problem", "hidepid=invisible"),
        ("rw,hidepid=noaccess", status(), "problem", "hidepid=noaccess"),
        ("rw,hidepid=2", status(capabilities=PTRACE), "good", "CAP_SYS_PTRACE overrides"),
        ("rw,gid=27,hidepid=2", status(groups="4 27"), "good", "a member"),
        ("rw,gid=27,hidepid=2", status(groups="4 28"), "problem", "alone"),
        ("rw,hidepid=2", status(groups="0"), "good", "gid=0, of which this user is a member"),
        ("rw,gid=27,hidepid=ptraceable", status(groups="27"), "problem", "alone"),
        ("rw,hidepid=4", status(capabilities=ALL), "good", "overrides"),
        ("rw,hidepid=later", status(), "problem", "hidepid=later"),
    ],
)
def test_hidepid(node: Guarded, options: str, identity: str, state: str, said: str) -> None:
    node.write("self/mountinfo", mounted(options))
    node.write("self/status", identity)
    finding = find_visibility(node)
    assert finding.state == state
    assert said in finding.found


def test_membership_in_the_group_of_the_mount_is_advised_where_it_helps(node: Guarded) -> None:
    node.write("self/mountinfo", mounted("rw,gid=27,hidepid=2"))
    assert "the group gid=27" in find_visibility(node).fix
    node.write("self/mountinfo", mounted("rw,gid=27,hidepid=4"))
    assert "gid" not in find_visibility(node).fix


def test_where_the_task_iterator_is_read_it_tells_what_proc_hides(node: Guarded) -> None:
    node.write("self/mountinfo", mounted("rw,hidepid=2"))
    pinned = node.path / "run/ccagent-kernel/tasks"
    pinned.parent.mkdir(parents=True)
    pinned.touch()
    hidden = ("processes of others", "I/O of others")
    findings = results(node)
    assert [findings[subject].state for subject in hidden] == ["good", "good"]
    assert "hidepid=2" in findings["processes of others"].found
    findings = results(node, "procfs")
    assert [findings[subject].state for subject in hidden] == ["problem", "problem"]


def test_what_can_be_read_counts_more_than_capabilities(node: Guarded) -> None:
    node.write("self/status", status(capabilities=BOTH))
    assert results(node)["I/O of others"].state == "problem"
    node.closed = ()
    (node.path / "proc/100/fd").mkdir()
    node.write("self/status", status())
    findings = results(node)
    assert findings["I/O of others"].state == findings["open files of others"].state == "good"


@pytest.mark.parametrize(
    ("capabilities", "state"), [(BOTH, "good"), (PTRACE, "problem"), (NONE, "problem")]
)
def test_with_nobody_else_capabilities_decide(node: Guarded, capabilities: str, state: str) -> None:
    node.end(100)
    node.process(101, uid=990)
    node.write("self/status", status(capabilities=capabilities))
    assert results(node)["I/O of others"].state == state


def test_a_proc_of_processes_alone(node: Guarded) -> None:
    (node.path / "proc/stat").unlink()
    finding = find_proc(node)
    assert finding.state == "problem"
    assert finding.found == "/proc/stat: No such file or directory"
    assert "ProcSubset=all" in finding.fix


def test_who_asks(node: Guarded) -> None:
    node.write("self/status", status(1001))
    findings = found(check_identity, node, cluster="fox")
    assert findings["user"].found == "ada, capabilities that matter: none"
    assert findings["cluster name"].found == "test.org, as configured"
    node.write("self/status", status(0, ALL))
    user = found(check_identity, node)["user"]
    assert user.found == "root, capabilities that matter: all"
    assert "runuser" in user.fix
    node.write("self/status", status(0, BOTH))
    assert found(check_identity, node)["user"].found.endswith(
        "CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE; missing: CAP_BPF, CAP_DAC_OVERRIDE, CAP_PERFMON, "
        "CAP_SYS_ADMIN"
    )
    node.write("self/status", status(0, f"{int(ALL, 16) & ~(1 << 19):016x}"))
    assert "give the service CAP_SYS_PTRACE (with" in results(node)["I/O of others"].fix


def test_names_that_many_have(node: Guarded) -> None:
    node.hostname, node.cluster = "localhost", "local"
    findings = found(check_identity, node)
    assert findings["host name"].state == findings["cluster name"].state == "problem"
    assert found(check_identity, node, cluster="local")["cluster name"].state == "good"


@pytest.mark.parametrize(
    ("name", "own", "names", "said", "fix"),
    [
        ("c1-1", "c1-1.fox", {"c1-1", "c1-10"}, "c1-1", ""),
        ("c1-1.fox", "c1-1.fox", {"c1-1.fox"}, "c1-1.fox", ""),
        ("c1-1.fox", "c1-1.fox", {"c1-1"}, "Slurm has c1-1, records have c1-1.fox", "remove"),
        ("c1-1", "c1-1.fox", {"c1-1.fox"}, "Slurm has c1-1.fox, records have c1-1", "= false"),
        ("c1", "c1.a", {"c1.a", "c1.b"}, "c1 is the short name of c1.a and c1.b", "= false"),
        ("c1.a", "c1.a", {"c1.a", "c1.b"}, "c1.a", ""),
    ],
)
def test_the_name_in_slurm(name: str, own: str, names: set[str], said: str, fix: str) -> None:
    finding = assess_slurm_name(name, own, names)
    assert finding is not None
    assert (finding.found, finding.state) == (said, "problem" if fix else "good")
    assert fix in finding.fix


def test_a_node_that_slurm_does_not_have() -> None:
    assert assess_slurm_name("login", "login.fox", {"c1-1", "c1-2"}) is None


def test_the_names_are_those_that_sinfo_prints(node: Guarded, tmp_path: Path) -> None:
    sinfo = tmp_path / "sinfo"
    sinfo.write_text("#!/bin/sh\necho 'c1-[1-2]'\necho 'gpu-1'\n")
    sinfo.chmod(0o755)
    table = {"cluster": {"every": "1h", "sinfo": str(sinfo)}}
    node.hostname = "gpu-1.fox"
    findings = found(check_slurm_name, node, agents=table)
    assert findings["name in Slurm"].found == "Slurm has gpu-1, records have gpu-1.fox"
    sinfo.unlink()
    assert found(check_slurm_name, node, agents=table) == {}


def test_a_user_without_more_groups_than_its_own() -> None:
    identity = parse_identity(status(groups="").encode())
    assert identity == (990, frozenset({990}), frozenset())


@pytest.mark.parametrize(
    ("hard", "processes", "state"),
    [("4096", 1280, "good"), ("4096", 1281, "problem"), ("unlimited", 40_000, "good")],
)
def test_open_files_against_processes(hard: str, processes: int, state: str) -> None:
    finding = assess_limit(parse_limit(LIMITS.format(hard=hard).encode()), processes)
    assert finding.state == state
    assert str(processes) in finding.found
    assert ("LimitNOFILE=65536" in finding.fix) == (state == "problem")


def test_processes_are_counted(node: Guarded) -> None:
    node.write("self/limits", LIMITS.format(hard="4096"))
    assert find_limit(node).found.endswith("1 there are")


@given(st.binary(max_size=400))
def test_parsers_refuse_what_they_do_not_know(content: bytes) -> None:
    for parse in (parse_identity, parse_limit):
        try:
            parse(content)
        except UnparsableError:
            continue


@given(
    st.integers(0, 2**32 - 1),
    st.frozensets(st.integers(0, 2**32 - 1)),
    st.sets(st.sampled_from(sorted(CAPABILITIES))),
)
def test_any_identity_is_read_back(uid: int, groups: frozenset[int], held: set[str]) -> None:
    bits = sum(1 << CAPABILITIES[name] for name in held)
    text = status(uid, f"{bits:016x}", " ".join(map(str, groups)))
    assert parse_identity(text.encode()) == Identity(uid, groups | {uid}, frozenset(held))
