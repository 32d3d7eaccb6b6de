"""How Jobstats is set up, and what will be lost."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.lustre.jobstats.setup import (
    SetupFinding,
    as_json,
    exit_status,
    findings,
    parse_setup,
    read_setup,
    report,
)
from ccagent.commands.agent_command import make_agent_command
from ccagent.machine.node import Node

FORMATS = ["%j:%u:%H", "%e.%u"]
CLIENT = {"jobid_var": "SLURM_JOB_ID", "jobid_name": "%j:%u:%H"}
OST = "obdfilter.fs-OST0000"
MDT = "mdt.fs-MDT0000"
SERVER = {
    "jobid_var": "disable",
    "jobid_name": "%e.%u",
    f"{OST}.job_cleanup_interval": "600",
    f"{OST}.job_stats": "",
}


def judged(
    parameters: Mapping[str, str | None],
    *,
    every: float | None = 60,
    formats: list[str] = FORMATS,
) -> list[SetupFinding]:
    return findings(dict(parameters), every=every, formats=formats)


def about(subject: str, found: list[SetupFinding]) -> list[tuple[str, str]]:
    return [(one.level, one.text) for one in found if one.subject == subject]


# What lctl prints


def test_parameters_of_a_server() -> None:
    content = (
        b"jobid_var=disable\n"
        b"jobid_name=%e.%u\n"
        b"mdt.fs-MDT0000.job_cleanup_interval=600\n"
        b"obdfilter.fs-OST0000.job_cleanup_interval=0\n"
    )
    assert parse_setup(content) == {
        "jobid_name": "%e.%u",
        "jobid_var": "disable",
        "mdt.fs-MDT0000.job_cleanup_interval": "600",
        "obdfilter.fs-OST0000.job_cleanup_interval": "0",
    }


@pytest.mark.parametrize(
    "line",
    [
        "jobid_name=%j:%u:%H",
        "jobid_name='%j:%u:%H'",
        'jobid_name = "%j:%u:%H"  ',
        "  jobid_name\t=\t%j:%u:%H\r",
        "jobid_name=\n%j:%u:%H",
        "jobid_name=\n\n  '%j:%u:%H'",
        "jobid_name=%e\njobid_name=%j:%u:%H",
    ],
)
def test_values_however_they_stand_there(line: str) -> None:
    content = f"memused=1\n{line}\nhealth_check=healthy\n".encode()
    assert parse_setup(content) == {"jobid_name": "%j:%u:%H"}


def test_an_empty_value_takes_none_from_the_next_line() -> None:
    for following in ("jobid_name=%e.%u", "error: get_param: no such parameter", "memused=1", ""):
        found = parse_setup(f"jobid_var=\n{following}\n".encode())
        assert found["jobid_var"] == ""


def test_a_value_of_two_lines_is_its_first() -> None:
    assert parse_setup(b"jobid_var=A\nB\n") == {"jobid_var": "A"}


def test_names_of_job_stats_with_and_without_what_is_in_them() -> None:
    content = (
        b"mdt.fs-MDT0000.job_stats\n"
        b"obdfilter.fs-OST0000.job_stats=job_stats:\n"
        b"obdfilter.fs-OST0001.job_stats=\n"
        b"job_stats:\n"
        b"- job_id:          jobid_var=disable\n"
    )
    assert parse_setup(content) == {
        "mdt.fs-MDT0000.job_stats": "",
        "obdfilter.fs-OST0000.job_stats": "",
        "obdfilter.fs-OST0001.job_stats": "",
    }


@pytest.mark.parametrize(
    "line",
    [
        "llite.fs-ffff.jobid_var=x",
        "mdt.jobid_var=x",
        "mdt.job_cleanup_interval=600",
        "osd.fs-OST0000.job_cleanup_interval=600",
        "mdt.fs-MDT0000.exports.job_cleanup_interval=600",
        "mdt.a b.job_cleanup_interval=600",
        "jobid_var",
        "jobid_variable=x",
    ],
)
def test_other_parameters_are_none_of_these(line: str) -> None:
    assert parse_setup(line.encode()) == {}


def test_what_is_not_printable_is_written_out() -> None:
    found = parse_setup(b"jobid_name=%j\x1b[31m\xff\xe2\x80\xa8%u\n")
    assert found["jobid_name"] == r"%j\x1b[31m\xff\u2028%u"


LINES = st.sampled_from(
    [b"jobid_var", b"jobid_name", b"mdt.a.job_cleanup_interval", b"obdfilter.a.job_stats", b"=",
     b"\n", b"600", b"'", b'"', b" ", b"error:", b"%j", b"\xff", b"\x1b", b"\r", b"\xe2\x80\xa8"]
)  # fmt: skip


@given(st.one_of(st.binary(), st.lists(LINES).map(b"".join)))
def test_whatever_lctl_prints_each_finding_is_one_printable_line(content: bytes) -> None:
    settings = parse_setup(content)
    found = findings(settings, every=60, formats=FORMATS)
    lines = report(found).split("\n")
    assert len(lines) == len(found) >= 1
    assert all(line.isprintable() for line in lines)
    assert len(json.loads(as_json(found))) == len(found)


# Where the settings are read


def write(root: Path, files: dict[str, str]) -> Node:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Node(root=str(root), hostname="oss1", cluster="fox")


@pytest.fixture
def lctl(tmp_path: Path) -> Callable[[str], str]:
    def make(script: str) -> str:
        path = tmp_path / "bin-lctl"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    return make


@pytest.mark.parametrize("place", ["sys/fs/lustre", "proc/fs/lustre", "proc/sys/lustre"])
def test_a_client_of_any_version(tmp_path: Path, place: str) -> None:
    node = write(tmp_path, {f"{place}/jobid_var": "SLURM_JOB_ID\n", f"{place}/jobid_name": "%j\n"})
    assert read_setup(node, "/nowhere/lctl", 1) == {
        "jobid_var": "SLURM_JOB_ID",
        "jobid_name": "%j",
        "jobid_this_session": None,
    }


@pytest.mark.parametrize("place", ["sys/fs/lustre", "proc/fs/lustre"])
def test_a_server_of_any_version(tmp_path: Path, place: str) -> None:
    files = {
        f"{place}/jobid_var": "disable\n",
        f"{place}/obdfilter/fs-OST0000/job_cleanup_interval": "300\n",
        f"{place}/mdt/fs-MDT0000/job_cleanup_interval": "600\n",
        "proc/fs/lustre/obdfilter/fs-OST0000/job_stats": "job_stats:\n",
        "proc/fs/lustre/mdt/num_refs": "2\n",
    }
    settings = read_setup(write(tmp_path, files), "/nowhere/lctl", 1)
    assert settings == {
        "jobid_var": "disable",
        "jobid_name": None,
        "jobid_this_session": None,
        f"{MDT}.job_cleanup_interval": "600",
        f"{MDT}.job_stats": None,
        f"{OST}.job_cleanup_interval": "300",
        f"{OST}.job_stats": "",
    }


def test_a_node_without_lustre(tmp_path: Path) -> None:
    settings = read_setup(write(tmp_path, {"proc/stat": "cpu"}), "/nowhere/lctl", 1)
    assert settings == {}
    assert findings(settings, every=60, formats=FORMATS) == [
        SetupFinding("problem", "lustre", "no Lustre on this node")
    ]


def test_lctl_tells_what_files_do_not(tmp_path: Path, lctl: Callable[[str], str]) -> None:
    program = lctl(
        'case "$2 $3" in\n'
        '"jobid_var "*) echo jobid_var=session;;\n'
        '"jobid_name "*) echo "jobid_name=%j:%u:%H";;\n'
        '"mdt.*.job_cleanup_interval "*) echo mdt.fs-MDT0000.job_cleanup_interval=600;;\n'
        '"-N mdt.*.job_stats") echo mdt.fs-MDT0000.job_stats;;\n'
        "*) echo \"error: get_param: param_path '$2': No such file or directory\" >&2; exit 2;;\n"
        "esac"
    )
    settings = read_setup(Node(root=str(tmp_path), cluster="fox"), program, 10)
    assert settings == {
        "jobid_var": "session",
        "jobid_name": "%j:%u:%H",
        f"{MDT}.job_cleanup_interval": "600",
        f"{MDT}.job_stats": "",
    }


def test_lctl_is_not_asked_for_what_files_tell(tmp_path: Path, lctl: Callable[[str], str]) -> None:
    files = {
        "sys/fs/lustre/jobid_var": "disable\n",
        "sys/fs/lustre/jobid_name": "%e.%u\n",
        "sys/fs/lustre/jobid_this_session": "x\n",
        "sys/fs/lustre/obdfilter/fs-OST0000/job_cleanup_interval": "600\n",
        "proc/fs/lustre/obdfilter/fs-OST0000/job_stats": "",
    }
    node = write(tmp_path, files)
    program = lctl(f"echo asked >> {tmp_path}/log")
    assert len(read_setup(node, program, 10)) == 5
    assert not (tmp_path / "log").exists()
    (tmp_path / "sys/fs/lustre/jobid_this_session").unlink()
    read_setup(node, program, 10)
    assert (tmp_path / "log").read_text() == "asked\n"


def test_what_lctl_printed_before_it_failed_counts(
    tmp_path: Path, lctl: Callable[[str], str]
) -> None:
    program = lctl(f"echo {OST}.job_cleanup_interval=300; echo error >&2; exit 5")
    settings = read_setup(Node(root=str(tmp_path), cluster="fox"), program, 10)
    assert settings[f"{OST}.job_cleanup_interval"] == "300"


@pytest.mark.slow
def test_lctl_that_hangs_costs_the_time_limit_once(
    tmp_path: Path, lctl: Callable[[str], str]
) -> None:
    program = lctl('test "$2" = jobid_var && echo jobid_var=disable; exec sleep 60')
    begin = time.monotonic()
    settings = read_setup(Node(root=str(tmp_path), cluster="fox"), program, 0.5)
    assert time.monotonic() - begin < 5
    assert settings == {"jobid_var": "disable"}


def test_lctl_without_its_modules_is_no_lustre_to_read(
    tmp_path: Path, lctl: Callable[[str], str]
) -> None:
    settings = read_setup(Node(root=str(tmp_path), cluster="fox"), lctl("exit 2"), 10)
    (found,) = findings(settings, every=60, formats=FORMATS)
    assert (found.level, found.subject) == ("problem", "lustre")
    assert "Lustre isn't loaded" in found.text


def test_the_command_takes_keys_of_the_agent(lctl: Callable[[str], str]) -> None:
    program = lctl(f"echo {OST}.job_cleanup_interval=300")
    keys = ["--set", f"lctl={program}", "--set", "every=4m"]
    result = CliRunner().invoke(make_agent_command("lustre"), ["check", "--json", *keys])
    assert result.exit_code == 1
    said = [one["text"] for one in json.loads(result.stdout) if one["subject"] == OST]
    assert any("every 240 s is not less than half of job_cleanup_interval" in text for text in said)


def test_the_command_checks_no_dump() -> None:
    result = CliRunner().invoke(make_agent_command("lustre"), ["check", "--set", "input=dump.txt"])
    assert result.exit_code != 0
    assert "agents.lustre.input: a dump has no setup to check" in str(result.exception)


def test_files_that_are_not_what_they_seem(tmp_path: Path) -> None:
    node = write(
        tmp_path,
        {
            "sys/fs/lustre/jobid_var": "x" * 100_000,
            "sys/fs/lustre/jobid_name": "%j\n%u\x1b[2J\n",
            "sys/fs/lustre/obdfilter/a\nb/job_cleanup_interval": "600\n",
        },
    )
    assert read_setup(node, "/nowhere/lctl", 1) == {
        "jobid_var": None,
        "jobid_name": r"%j\n%u\x1b[2J",
        "jobid_this_session": None,
    }


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    node = write(tmp_path, {"sys/fs/lustre/jobid_var/file": "", "proc/fs/lustre/mdt/file": ""})
    (tmp_path / "proc/fs/lustre/mdt/fs-MDT0000").symlink_to("fs-MDT0000")
    settings = read_setup(node, "/nowhere/lctl", 1)
    assert settings == {
        "jobid_var": None,
        "jobid_name": None,
        "jobid_this_session": None,
        f"{MDT}.job_cleanup_interval": None,
        f"{MDT}.job_stats": None,
    }
    ((level, text),) = about("lustre", findings(settings, every=60, formats=FORMATS))
    assert level == "problem"
    assert "no permission" in text


# The cadence


@pytest.mark.parametrize(
    ("every", "level", "said"),
    [
        (299.0, "ok", "every 299 s is less than half of job_cleanup_interval, 600 s"),
        (300.0, "problem", "one failed observation loses entries"),
        (599.0, "problem", "one failed observation loses entries"),
        (600.0, "problem", "entries removed between two observations are lost"),
    ],
)
def test_the_cadence_is_to_be_under_half(every: float, level: str, said: str) -> None:
    ((found, text),) = about(OST, judged(SERVER, every=every))
    assert found == level
    assert said in text


def test_each_target_has_its_own_interval() -> None:
    found = judged({**SERVER, f"{MDT}.job_cleanup_interval": "100"}, every=60)
    assert [level for level, _ in about(OST, found)] == ["ok"]
    assert [level for level, _ in about(MDT, found)] == ["problem"]


def test_entries_that_are_never_removed_use_memory() -> None:
    ((level, text),) = about(OST, judged({**SERVER, f"{OST}.job_cleanup_interval": "0"}))
    assert level == "warning"
    assert "memory use grows" in text


@pytest.mark.parametrize("value", [None, "", "-1", "ten", "1" * 30])
def test_an_interval_that_is_not_known(value: str | None) -> None:
    ((level, text),) = about(OST, judged({**SERVER, f"{OST}.job_cleanup_interval": value}))
    assert level == "warning"
    assert "is unknown (default 600 s)" in text


def test_without_cadence_there_is_a_word_on_which_one_is_needed() -> None:
    found = judged({**SERVER, f"{MDT}.job_cleanup_interval": "100"}, every=None)
    assert about(OST, found) == [("ok", "job_cleanup_interval is 600 s")]
    ((level, text),) = about("every", found)
    assert level == "warning"
    assert "set less than 50 s" in text


def test_a_target_without_job_stats() -> None:
    found = judged({**SERVER, f"{OST}.job_stats": None})
    assert ("problem", "has no job_stats: can't collect its jobstats") in about(OST, found)


def test_a_client_has_no_targets() -> None:
    found = judged(CLIENT, every=None)
    assert [one.level for one in found] == ["ok"] * len(found)
    assert about("targets", found)
    assert about("every", found) == []


# Identifiers


@pytest.mark.parametrize(
    ("variable", "level", "said"),
    [
        ("SLURM_JOB_ID", "ok", "no job ids for processes without this environment variable"),
        ("PBS_JOBID", "ok", "no job ids for processes without this environment variable"),
        ("disable", "problem", "job_stats has none of its I/O"),
        ("nodelocal", "warning", "jobs on a shared node share an entry"),
        ("procname_uid", "warning", "ids are %e.%u: no job ids"),
        ("session", "warning", "sessions without jobid_this_session"),
        ("", "warning", "empty: no job ids"),
        (None, "warning", "unknown, and so are the ids"),
    ],
)
def test_what_a_client_loses_by_its_jobid_var(variable: str | None, level: str, said: str) -> None:
    ((found, text),) = about("jobid_var", judged({**CLIENT, "jobid_var": variable}))[:1]
    assert found == level
    assert said in text


def test_the_jobid_var_of_a_server_does_not_matter_to_clients() -> None:
    ((level, text),) = about("jobid_var", judged(SERVER))
    assert level == "ok"
    assert "not the ids of clients" in text


def test_a_jobid_of_the_session_without_effect() -> None:
    session = {"jobid_this_session": "md-7"}
    found = judged({**CLIENT, **session})
    assert about("jobid_this_session", found) == [
        ("ok", "md-7: no effect without jobid_var=session")
    ]
    found = judged({**CLIENT, **session, "jobid_var": "session"})
    assert about("jobid_this_session", found) == [("ok", "md-7: of this session")]


@pytest.mark.parametrize(
    ("variable", "name", "formats"),
    [
        ("SLURM_JOB_ID", "%j:%u:%H", ["%j:%u:%H"]),
        ("SLURM_JOB_ID", "%j:%u:%H", ["%j:%u:%h"]),
        ("SLURM_JOB_ID", "%e.%u", ["%j", "%e.%u"]),
        ("SLURM_JOB_ID", "%j:%.4e %H%z%", ["%j:%e%H"]),
        ("SLURM_JOB_ID", "%.12j:%u", ["%j", "%j:%u"]),
        ("SLURM_JOB_ID", None, ["%j"]),
        ("SLURM_JOB_ID", "%j?%H:%u", ["%j:%u", "%H:%u"]),
        ("procname_uid", "%j:%u:%H", ["%e.%u"]),
        ("nodelocal", "%u.%H", ["%u.%H"]),
        (None, "%u.%H", ["%u.%H"]),
        ("disable", "%u.%H", []),
    ],
)
def test_the_formats_that_the_agent_must_know(
    variable: str | None, name: str | None, formats: list[str]
) -> None:
    parameters = {"jobid_var": variable, "jobid_name": name}

    def malformed(known: list[str]) -> int:
        return report(judged(parameters, formats=known)).count("flagged malformed")

    assert malformed([*FORMATS, *formats]) == 0
    assert malformed(formats) == 0
    assert malformed(["%g.%p"]) == len(formats)


def test_an_id_that_is_the_same_for_all() -> None:
    found = judged({"jobid_var": "nodelocal", "jobid_name": "login1"})
    assert "all processes of this node have the same id" in report(found)


@pytest.mark.parametrize(
    ("name", "length"),
    [
        ("%j:%u:%H", 0),
        ("%e.%u", 0),
        ("%j:%u:%h", 38),
        ("%e.%u.%j", 33),
        ("%.5e.%u.%j", 0),
        ("%.99e.%u.%j", 33),
        ("%.e.%u.%j", 33),
        ("%j:" + 23 * "x", 32),
    ],
)
def test_ids_that_are_cut(name: str, length: int) -> None:
    found = judged({**CLIENT, "jobid_name": name}, formats=[name, "%j"])
    said = [text for _, text in about("jobid_name", found) if "but Lustre keeps 31" in text]
    assert [f"may have {length} characters" in text for text in said] == [True] * bool(length)


@pytest.mark.parametrize(
    ("name", "said"), [("%j:%h", "%H is safer"), ("%j.%p", "one entry per process")]
)
def test_codes_that_cost(name: str, said: str) -> None:
    found = judged({**CLIENT, "jobid_name": name}, formats=[name])
    assert [level for level, text in about("jobid_name", found) if said in text] == ["warning"]


# What is shown


SHOWN = [
    SetupFinding("ok", "jobid_var", "a"),
    SetupFinding("warning", "mdt.fs-MDT0000", "b\nproblem"),
]


def test_a_report_has_a_line_for_each_finding() -> None:
    assert report(SHOWN) == (
        "ok       jobid_var       a\n"
        "warning  mdt.fs-MDT0000  b\\nproblem"
    )  # fmt: skip
    assert report([]) == ""


def test_findings_as_json() -> None:
    assert json.loads(as_json([*SHOWN[:1], SetupFinding("ok", "x", "\udcff")])) == [
        {"level": "ok", "subject": "jobid_var", "text": "a"},
        {"level": "ok", "subject": "x", "text": "\\udcff"},
    ]


def test_only_a_problem_is_a_failure() -> None:
    assert exit_status(SHOWN) == 0
    assert exit_status([*SHOWN, SetupFinding("problem", "x", "y")]) == 1
    assert exit_status([]) == 0
