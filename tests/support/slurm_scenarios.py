"""Jobs of all kinds, submitted to a real Slurm: what may happen to one, and the oddest texts."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING

from tests.support.slurm_cluster import LONG_NAME, USERS

if TYPE_CHECKING:
    from tests.support.slurm_cluster import SlurmCluster

RESERVATION = "night|shift"
LONG_TEXT = "L" * 300

ODD_NAMES = {
    "bar": "a|b",
    "spaces around": " lead and trail ",
    "newline": "new\nline",
    "tab": "tab\there",
    "carriage return": "cr\rx",
    "unicode": "smørbrød-名前-🦀",
    "quotes": "quote\"single'back\\slash",
    "fields": "JobId=1 TRES=cpu=99,mem=9T",
    "star": "*",
    "pattern": "%j-%A",
    "dash": "-dash",
    "separators": "x,y;z",
    "escape": "ctl\x01\x1b[31mred",
    "unit separator": "unit\x1fseparator",
    "not UTF-8": os.fsdecode(b"bad\xff\xfeutf"),
    "300 characters": LONG_TEXT,
    "null": "(null)",
    "shell": "a;b&c<d>",
    "empty": "",
}
"""Names of jobs that a user can give; surrogates stand for bytes that are no UTF-8."""

_STEPS = """\
srun -J 'step|one two' sleep 1
srun --exact -n1 -J second sh -c 'exit 7'
srun --exact -n1 sleep 2 & srun --exact -n1 sleep 1 & wait
"""

_HET = """\
#!/bin/sh
#SBATCH -n1 -p normal -J het --mem=200
#SBATCH hetjob
#SBATCH -n1 -p bigmem --mem=700
srun --het-group=0,1 sleep 2
srun --het-group=1 true
"""

# tail keeps a line without an end.
_TOO_MUCH_MEMORY = "head -c 300000000 /dev/zero | tail >/dev/null"


class Jobs:
    """The jobs of all scenarios, after `submit`: `ids` and the states to end in, by name.

    `running` and `suspended` don't end by themselves; what is PENDING stays so.
    """

    def __init__(self, cluster: SlurmCluster) -> None:
        self.cluster = cluster
        self.ids: dict[str, int] = {}
        self.expected: dict[str, set[str]] = {}
        self._tasks = {"array": 6}  # sacct lists those that wait only later
        self._interactive: dict[str, subprocess.Popen[str]] = {}
        self._changed = cluster.directory / "home/changed"
        self._until_changed = f"while [ ! -e {self._changed} ]; do sleep 0.2; done"

    def submit(self) -> None:
        """Submit all, what takes longest first; jobs of an earlier attempt are cancelled."""
        self._clear()
        self.cluster.run(
            *("scontrol", "create", "reservation", f"ReservationName={RESERVATION}"),
            *("StartTime=now", "Duration=60", "Users=alice", "Nodes=c1-2", "CoreCnt=1"),
        )
        # Accounting joins the two by time: it must be older than its job, in whole seconds.
        time.sleep(1.1)
        self._changed_ones()
        self._kinds()
        self._interactive_ones()
        self._limits_and_memory()
        self._texts()
        self._pending()
        self._cancelled()
        self._changed_while_running()

    def wait(self, *names: str, time_limit: float = 240) -> None:
        """Wait until sacct knows these jobs, or all, in the states where they are to end."""
        deadline = time.monotonic() + time_limit
        while self._interactive:
            name, process = self._interactive.popitem()
            output, _ = process.communicate(timeout=time_limit)
            assert process.returncode == 0, (name, output)
            self.ids[name] = int(output.split()[0])
        while wrong := self.unlike_expected(*names):
            if time.monotonic() > deadline:
                raise TimeoutError(f"jobs in other states than expected: {wrong}")
            time.sleep(0.2)

    def close(self) -> None:
        """Wait for nothing any more."""
        for process in self._interactive.values():
            process.kill()
            process.communicate()

    def unlike_expected(self, *names: str) -> dict[str, tuple[int, list[str]]]:
        """Return the id and the states of those jobs that are in other states than expected."""
        ids = {name: self.ids[name] for name in names or self.ids}
        states: dict[int, list[str]] = {}
        for job, state in self.cluster.states(*ids.values()):
            states.setdefault(job, []).append(state)
        found = {name: (job, states.get(job, [])) for name, job in ids.items()}
        return {
            name: (job, listed)
            for name, (job, listed) in found.items()
            if {*listed} != self.expected[name] or len(listed) < self._tasks.get(name, 1)
        }

    def _add(self, name: str, user: str, ends: str, *arguments: str, script: str = "true") -> int:
        """Submit a job that is to end in the states `ends`."""
        self.expected[name] = set(ends.split())
        self.ids[name] = self.cluster.submit(user, "-J", name, *arguments, f"--wrap={script}")
        return self.ids[name]

    def _clear(self) -> None:
        """Cancel all jobs, so that the reservation finds its node idle, and remove it."""
        self._changed.unlink(missing_ok=True)
        for user in USERS:
            self.cluster.run("scancel", f"--user={user}")
        deadline = time.monotonic() + 240
        while self.cluster.run("squeue", "-h", "-o", "%A"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"jobs don't end: {self.cluster.queue_and_nodes()}")
            time.sleep(0.2)
        if RESERVATION in self.cluster.run("scontrol", "show", "reservation"):
            self._control("delete", f"ReservationName={RESERVATION}")

    def _changed_ones(self) -> None:
        """Submit what is changed later, and wait until it runs.

        Behind jobs that wait for two nodes it would not start, nor would they: it fills one node.
        """
        add = self._add
        add("timeout", "bob", "TIMEOUT", "-t", "2", script="srun sleep 300")
        add("requeued", "bob", "COMPLETED", script="[ $SLURM_RESTART_COUNT ] || sleep 300")
        add("running", "alice", "RUNNING", "-n2", script="srun -n2 sleep 3600")
        add("suspended", "bob", "SUSPENDED", script="sleep 600")
        add("resumed", "bob", "COMPLETED", script=self._until_changed)
        add("resized", "alice", "RESIZING COMPLETED", "-N2", script=self._until_changed)
        add("special exit", "alice", "PENDING", script="sleep 300")
        add("cancelled", "alice", "CANCELLED", script="sleep 300")
        add("preempted", "bob", "PREEMPTED", *_half_a_node("low"), script="sleep 300")
        ids = ",".join(map(str, self.ids.values()))
        deadline = time.monotonic() + 240
        while set(self.cluster.run("squeue", "-h", "-j", ids, "-o", "%T").split()) != {"RUNNING"}:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"not all of {ids} are running: {self.cluster.queue_and_nodes()}"
                )
            time.sleep(0.1)

    def _kinds(self) -> None:
        add = self._add
        add("plain", "alice", "COMPLETED", script="sleep 1")
        add("exit 3", "alice", "FAILED", script="exit 3")
        add("exit 255", "bob", "FAILED", "-A", "chem", script="exit 255")
        add("killed", "bob", "FAILED", script="kill -9 $$")
        add("segmentation fault", "bob", "FAILED", script="kill -SEGV $$")
        add("long user name", LONG_NAME, "COMPLETED", script="sleep 1")
        add("steps", "alice", "COMPLETED", "-n2", script=_STEPS)
        add("two nodes", "bob", "COMPLETED", "-n4", "-N2", "-mcyclic", script="srun sleep 2")
        add(
            *("array", "alice", "COMPLETED FAILED", "--array=0-5:1%2"),
            script="sleep 1; [ $SLURM_ARRAY_TASK_ID != 3 ]",
        )
        (self.cluster.directory / "home/het.sh").write_text(_HET)
        self.expected["het"] = {"COMPLETED"}
        self.ids["het"] = self.cluster.submit("alice", str(self.cluster.directory / "home/het.sh"))
        add(
            *("gpu", "alice", "COMPLETED", "-p", "accel", "--gres=gpu:a100:1"),
            script='env | grep -E "SLURM|CUDA" >gpu.env; sleep 2',
        )
        add("gpus", "alice", "COMPLETED", "-p", "accel", "--gpus=2", script="sleep 1")
        by_cgroup = self.cluster.tracking == "cgroup"
        ends = "OUT_OF_MEMORY" if by_cgroup else "COMPLETED"
        add("out of memory", "alice", ends, "--mem=60", script=_TOO_MUCH_MEMORY)
        add(
            *("step out of memory", "alice", "COMPLETED", "--mem=60"),
            script=f"srun sh -c '{_TOO_MUCH_MEMORY}'; sleep 1",
        )

    def _interactive_ones(self) -> None:
        step = ("srun", "-n2", "sh", "-c", "echo $SLURM_JOB_ID; sleep 2")
        for name, command in {
            "srun": step,
            "salloc": ("salloc", "-p", "bigmem", "-n2", "--mem=200", *step),
        }.items():
            self.expected[name] = {"COMPLETED"}
            self._interactive[name] = subprocess.Popen(
                self.cluster.enter(*command, user="bob"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )

    def _limits_and_memory(self) -> None:
        for name, arguments in {
            "unlimited": ["-p", "bigmem", "-t", "UNLIMITED"],
            "limit of the partition": ["-p", "bigmem"],
            "days": ["-p", "bigmem", "-t", "3-04:05:06"],
            "memory per cpu": ["--mem-per-cpu=123", "-c2"],
            "memory per node": ["--mem=1500M", "-N2"],
            "all memory": ["-p", "hidden_part", "--mem=0"],
            "two partitions": ["-p", "normal,bigmem"],
        }.items():
            self._add(name, "bob", "COMPLETED", *arguments, script="sleep 1")

    def _texts(self) -> None:
        """Jobs whose user chose texts that look like something else."""
        for name, text in ODD_NAMES.items():
            self._add(f"name: {name}", "bob", "COMPLETED", f"--job-name={text}")
        injected = f"x\nJobId={self.ids['plain']} JobState=FAILED TRES=cpu=77"
        self._add("name: another job", "bob", "COMPLETED", f"--job-name={injected}")
        self._add("comment", "bob", "COMPLETED", f"--comment={injected}|x\nsecond line")
        directory = self.cluster.home("bob") / injected
        directory.mkdir(exist_ok=True)
        os.chown(directory, USERS["bob"], USERS["bob"])
        self._add("working directory", "bob", "COMPLETED", f"--chdir={directory}")
        self._add("reservation", "alice", "COMPLETED", f"--reservation={RESERVATION}")

    def _pending(self) -> None:
        add = self._add
        held = add("held", "alice", "PENDING", "--hold")
        add("held array", "bob", "PENDING", "--hold", "--array=1,3,5-20:5%3")
        add("dependent", "alice", "PENDING", "-d", f"afterok:{held}")
        failed = self.ids["exit 3"]
        add("never", "alice", "PENDING", "-d", f"afterok:{failed}")
        add(
            *("cancelled by dependency", "alice", "CANCELLED", "-d", f"afterok:{failed}"),
            "--kill-on-invalid-dep=yes",
        )
        add("later", "alice", "PENDING", "-b", "now+2hours")
        add("no nodes", "alice", "PENDING", "-N2", "-w", "c2-[01-02]")
        self._control("hold", add("held by root", "bob", "PENDING", "-b", "now+2hours"))

    def _cancelled(self) -> None:
        job = str(self._add("cancelled while pending", "bob", "CANCELLED", "--hold"))
        self.cluster.run("scancel", job, user="bob")
        job = str(self._add("cancelled by root", "bob", "CANCELLED", "--hold"))
        self.cluster.run("scancel", job)

    def _changed_while_running(self) -> None:
        """Do to running jobs what Slurm or an administrator may do."""
        ids = self.ids
        self._add("urgent", "alice", "COMPLETED", *_half_a_node("urgent"), script="sleep 1")
        self.cluster.run("scancel", str(ids["cancelled"]), user="alice")
        self._control("update", f"JobId={ids['resized']}", "NumNodes=1")
        self._control("requeuehold", "State=SpecialExit", ids["special exit"])
        self._control("requeue", ids["requeued"])
        self._control("suspend", ids["resumed"])
        self._control("suspend", ids["suspended"])
        # Limits are whole minutes, and looked at every half a minute.
        self._control("update", f"JobId={ids['timeout']}", "EndTime=now+1")
        time.sleep(2)
        self._control("resume", ids["resumed"])
        self._changed.touch()

    def _control(self, *arguments: str | int) -> None:
        self.cluster.run("scontrol", *(str(each) for each in arguments))


def _half_a_node(partition: str) -> list[str]:
    """Ask for so much memory of the node gpu-1 that only one such job finds place."""
    return ["-p", partition, "-w", "gpu-1", "--mem=2500"]
