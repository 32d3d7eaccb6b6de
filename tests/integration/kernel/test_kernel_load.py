"""`ccagent kernel`: programs really go into the kernel of this machine, and leave it. As root."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ccagent.errors import NotHereError, ProgramError, UnparsableError
from ccagent.machine.bpf import loading, pins, status
from ccagent.machine.bpf.pinned_file import END, HEADER
from ccagent.machine.bpf.process_records import parse_tasks
from ccagent.machine.bpf.status import Objects, objects
from tests.support.kernel_programs import (
    NOBODY,
    SOURCES,
    as_nobody,
    compiled,
    is_in_kernel,
    own_directory,
    program_ids,
    read_ended,
    read_tasks,
)
from tests.support.running import CCAGENT, until

BUILT_WITH = "Debian clang version 14.0.6"
"""The compiler that made the objects in the repository."""

REJECTED = """
SEC("iter/task")
int tasks(struct bpf_iter__task *ctx)
{
	return *(volatile int *)ctx->meta->seq_num;
}
"""

FIELD_OF_ANOTHER_KERNEL = """
struct task_struct___other {
	int no_such_field;
} __attribute__((preserve_access_index));

SEC("iter/task")
int tasks(struct bpf_iter__task *ctx)
{
	struct task_struct___other *task = (void *)ctx->task;
	int value = 0;

	if (task && (!CHECKS || bpf_core_field_exists(task->no_such_field)))
		value = task->no_such_field;
	if (is_first(ctx->meta, task))
		begin(ctx->meta->seq, "cctasks\\n", LAYOUT, 296, value);
	if (!task)
		begin(ctx->meta->seq, "ccended\\n", 1, 0, 0);
	return 0;
}
"""


@pytest.fixture
def directory() -> Iterator[str]:
    with own_directory() as place:
        yield place


def kernel(*arguments: str, code: int = 0) -> str:
    """What the command says, on stdout and stderr."""
    result = subprocess.run(
        [*CCAGENT, "kernel", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == code, result.stderr
    return result.stdout + result.stderr


def is_left(directory: str) -> bool:
    """Return whether there is anything of a load."""
    mounts = Path("/proc/self/mountinfo").read_text()
    return os.path.exists(directory) or directory in mounts or os.path.exists(loading.LOCK)


def test_load_tell_and_unload(directory: str) -> None:
    version = objects().version
    assert kernel("status", "--directory", directory, code=1).splitlines()[1] == (
        "state:            not loaded"
    )
    assert kernel("load", "--directory", directory) == f"{directory}: loaded, {version}\n"
    told = json.loads(kernel("status", "--directory", directory, "--json"))
    assert told["state"] == "loaded"
    assert told["version"] == version
    assert told["processes"] > 1
    assert told["problems"] == []
    text = kernel("status", "--directory", directory)
    assert f"version:          {version}\nmode:             0440\n" in text
    assert kernel("unload", "--directory", directory) == f"{directory}: unloaded\n"
    assert kernel("unload", "--directory", directory) == f"{directory}: was not loaded\n"


def test_unload_leaves_nothing_in_the_kernel_even_while_somebody_reads(directory: str) -> None:
    loading.load(directory)
    programs = program_ids(directory)
    assert all(map(is_in_kernel, programs))
    with open(f"{directory}/{pins.TASKS}", "rb") as file:
        assert loading.unload(directory)
        assert not is_left(directory)
        assert file.read(8) == b"cctasks\n"
    until(lambda: not any(map(is_in_kernel, programs)))


def test_loading_twice_changes_nothing_but_who_may_read(directory: str) -> None:
    assert loading.load(directory).changed
    programs = program_ids(directory)
    assert kernel("load", "--directory", directory, "--mode", "0444", "--group", "nogroup") == (
        f"{directory}: was loaded, {objects().version}\n"
    )
    assert program_ids(directory) == programs
    for name in (pins.TASKS, pins.ENDED):
        found = os.stat(f"{directory}/{name}")
        assert (found.st_mode & 0o777, found.st_uid, found.st_gid) == (0o444, 0, NOBODY)
    for name in (pins.ON_EXIT, pins.ON_FREE):
        assert os.stat(f"{directory}/{name}").st_mode & 0o077 == 0
    told = status.read_status(directory)
    assert (told.mode, told.group) == ("0444", "nogroup")


def test_of_loads_at_the_same_time_one_loads(directory: str) -> None:
    changed: list[bool] = []
    threads = [
        threading.Thread(target=lambda: changed.append(loading.load(directory).changed))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(changed) == [False, False, True]
    assert len(program_ids(directory)) == 4


def test_another_version_is_replaced(directory: str) -> None:
    ours = objects()
    other = Objects(ours.tasks + b"\0", ours.ended)
    assert loading.load(directory, programs=other).version == other.version
    programs = program_ids(directory)
    assert "state:            other version" in kernel("status", "--directory", directory, code=1)
    assert kernel("load", "--directory", directory) == f"{directory}: loaded, {ours.version}\n"
    until(lambda: not any(map(is_in_kernel, programs)))
    assert status.read_status(directory).state == "loaded"


def test_what_a_killed_load_left_is_taken_away(directory: str) -> None:
    loading.load(directory)
    os.unlink(f"{directory}/{pins.VERSION}")
    os.unlink(f"{directory}/{pins.ON_FREE}")
    assert "incomplete" in kernel("status", "--directory", directory, code=1)
    assert loading.load(directory).changed
    os.unlink(f"{directory}/{pins.VERSION}")
    assert loading.unload(directory)
    assert not is_left(directory)


def test_a_user_of_the_group_reads_a_thousand_times_and_others_never(directory: str) -> None:
    loading.load(directory, group=NOBODY)
    read = f"""
for _ in range(1000):
    with open("{directory}/tasks", "rb") as file:
        content = b"".join(iter(lambda: file.read(65536), b""))
    tasks = list(process_records.parse_tasks(content))
    assert len(tasks) > 1 and any(task.pid == os.getpid() for task in tasks)
print(sum(task.rchar for task in tasks if task.euid == 0) > 0)
"""
    result = as_nobody(read)
    assert (result.stdout, result.stderr) == ("True\n", "")
    denied = as_nobody(read, group=NOBODY - 1)
    assert f"Permission denied: '{directory}/tasks'" in denied.stderr
    told = as_nobody(f"print(status.read_status('{directory}'))", group=NOBODY - 1)
    assert f"/{pins.TASKS}: Permission denied" in told.stdout


def test_a_process_that_begins_after_the_end_was_read_breaks_nothing(directory: str) -> None:
    loading.load(directory)
    with open(f"{directory}/{pins.TASKS}", "rb", buffering=0) as file:
        content = b""
        while not content[-HEADER.size :].startswith(END):
            content += file.read(65536)
        end = len(content)
        # Only pids above the last thread's are looked for, and pids begin again at times.
        last = max(int(path.name) for path in Path("/proc").glob("[0-9]*/task/*"))
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(last))
        with subprocess.Popen(["sleep", "60"]) as late:
            while piece := file.read(65536):
                content += piece
            late.kill()
    assert len(content) > end
    before = list(parse_tasks(content))
    assert os.getpid() in {task.pid for task in before}
    assert late.pid not in {task.pid for task in before}


@pytest.mark.parametrize("action", ["load", "unload"])
def test_without_privilege_it_says_so(directory: str, action: str) -> None:
    result = as_nobody(
        f"try: loading.{action}('{directory}')\nexcept CcagentError as error: print(repr(error))"
    )
    expected = f"NotPermittedError('{loading.LOCK}: only root can load and unload')\n"
    assert (result.stdout, result.stderr) == (expected, "")
    assert not is_left(directory)


def test_root_without_capabilities_is_told_what_failed(directory: str) -> None:
    result = subprocess.run(
        ["setpriv", "--bounding-set=-all", *CCAGENT, "kernel", "load", "--directory", directory],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    expected = f"ccagent: {directory}: mounting a bpffs there: Operation not permitted\n"
    assert (result.returncode, result.stderr) == (1, expected)
    assert not is_left(directory)


def test_what_is_lacking_is_named(directory: str) -> None:
    with pytest.raises(NotHereError, match=r"libbpf is not installed \(libnone.so.7\): the pack"):
        loading.load(directory, libraries=("libnone.so.7",))
    with pytest.raises(NotHereError, match=r"libbpf is too old .*bpf_object__open_mem"):
        loading.load(directory, libraries=("libc.so.6",))
    with pytest.raises(NotHereError, match="/none/vmlinux: none. Linux 5.8 .* CONFIG_DEBUG_INFO_"):
        loading.load(directory, btf="/none/vmlinux")
    with pytest.raises(NotHereError, match="/none/tasks.bpf.o: No such file"):
        objects("/none")
    assert not is_left(directory)


def test_a_rejected_program_leaves_nothing_and_tells_the_verifier_s_reason(
    directory: str, tmp_path: Path
) -> None:
    programs = Objects(compiled(tmp_path, REJECTED), objects().ended)
    with pytest.raises(ProgramError, match=r"^tasks: .* refuses it: R\d invalid mem access"):
        loading.load(directory, programs=programs)
    assert not is_left(directory)


def test_a_rejected_program_takes_the_version_before_with_it(
    directory: str, tmp_path: Path
) -> None:
    loading.load(directory)
    with pytest.raises(ProgramError):
        loading.load(directory, programs=Objects(compiled(tmp_path, REJECTED), b""))
    assert not is_left(directory)


@pytest.mark.parametrize("size", [0, 1, 1000, 20000])
def test_a_damaged_object_leaves_nothing(directory: str, size: int) -> None:
    ours = objects()
    with pytest.raises(ProgramError, match="^tasks: the kernel or libbpf refuses it: "):
        loading.load(directory, programs=Objects(ours.tasks[:size], ours.ended))
    assert not is_left(directory)


def test_where_ended_processes_can_t_be_counted_the_living_are_told(
    directory: str, tmp_path: Path
) -> None:
    ours = objects()
    programs = Objects(ours.tasks, compiled(tmp_path, REJECTED))
    done = loading.load(directory, programs=programs)
    assert "ended: " in done.complaint
    assert done.version.endswith("-tasks")
    assert {*os.listdir(directory)} & {*pins.ALL} == {pins.TASKS, pins.VERSION}
    assert len(read_tasks(directory)) > 1
    assert "are not counted" in status.read_status(directory).problems[0]
    assert loading.unload(directory)
    assert not is_left(directory)


def test_a_field_that_another_kernel_has_is_named_or_done_without(
    directory: str, tmp_path: Path
) -> None:
    source = FIELD_OF_ANOTHER_KERNEL.replace("LAYOUT", "1")
    unchecked = source.replace("CHECKS", "0")
    with pytest.raises(ProgramError, match="failed to resolve CO-RE .*no_such_field"):
        loading.load(directory, programs=Objects(compiled(tmp_path, unchecked), b""))
    assert not is_left(directory)
    checked = source.replace("CHECKS", "1")
    loading.load(directory, programs=Objects(compiled(tmp_path, checked), objects().ended))
    assert read_tasks(directory) == {}


def test_programs_of_another_layout_than_the_agent_s_are_not_left(
    directory: str, tmp_path: Path
) -> None:
    source = FIELD_OF_ANOTHER_KERNEL.replace("LAYOUT", "9").replace("CHECKS", "1")
    with pytest.raises(UnparsableError, match="layout 9 with records of 296 bytes instead of 1"):
        loading.load(directory, programs=Objects(compiled(tmp_path, source), objects().ended))
    assert not is_left(directory)


def test_what_is_not_ours_stays(directory: str) -> None:
    os.mkdir(directory)
    Path(directory, pins.TASKS).write_text("mine")
    with pytest.raises(ProgramError, match="neither an empty directory of root nor in a bpffs"):
        loading.load(directory)
    assert not loading.unload(directory)
    assert Path(directory, pins.TASKS).read_text() == "mine"
    os.unlink(f"{directory}/{pins.TASKS}")
    os.chown(directory, NOBODY, NOBODY)
    with pytest.raises(ProgramError, match="neither an empty directory of root"):
        loading.load(directory)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mode", "0666"], "--mode: '0666': expected 0400, 0440 or 0444"),
        (["--mode", "rw"], "--mode: 'rw': expected 0400, 0440 or 0444"),
        (["--group", "no-such"], "--group: there is no group 'no-such'"),
        (["--directory", "run/x"], "--directory: 'run/x' does not start with /"),
    ],
)
def test_wrong_options(arguments: list[str], message: str) -> None:
    assert message in kernel("load", *arguments, code=2)


def test_nobody_else_can_hold_the_lock(tmp_path: Path) -> None:
    path = f"{tmp_path}/lock"
    with loading.alone(path):
        assert os.stat(path).st_mode & 0o777 == 0o600
    assert not os.path.exists(path)
    os.symlink("/etc/passwd", path)
    with pytest.raises(Exception, match="Too many levels"), loading.alone(path):
        pytest.fail("it followed a link")
    with pytest.raises(NotHereError), loading.alone(f"{tmp_path}/none/lock"):
        pytest.fail("there is no such directory")


def test_they_are_built_anew_and_run(directory: str, tmp_path: Path) -> None:
    subprocess.run([SOURCES / "build", tmp_path], check=True)
    built, ours = objects(str(tmp_path)), objects()
    clang = subprocess.run(["clang", "--version"], capture_output=True, text=True, check=True)
    if clang.stdout.splitlines()[0] == BUILT_WITH:
        assert built == ours, "the sources have changed: src/ccagent/machine/bpf/build"
    done = loading.load(directory, programs=built)
    assert done.complaint == ""
    assert read_tasks(directory)[os.getpid()].ppid == os.getppid()
    subprocess.run(["true"], check=True)
    until(lambda: read_ended(directory).total.processes)
