"""A real Slurm with accounting on this machine: four nodes, three users, nothing left afterwards.

It runs in namespaces of its own for processes, network and mounts; its users exist only there.
Needs root, Slurm's daemons, munge and MariaDB; `missing` says what isn't there.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from tests.support.slurm_namespaces import Namespaces

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

NODES = ("c1-1", "c1-2", "bigmem1", "gpu-1")
"""The nodes that answer."""

LONG_NAME = "ec-per.hansen_averylongusername"
USERS = {"alice": 5001, "bob": 5002, LONG_NAME: 5003}
"""All have the account `physics`; alice and bob have `chem` too."""

PACKAGES = (
    "slurmctld slurmd slurmdbd slurmrestd slurm-client slurm-wlm-jwt-plugin munge mariadb-server "
    "iproute2 util-linux"
)
"""What Debian calls what is needed."""

_PROGRAMS = (
    *("slurmctld", "slurmd", "slurmdbd", "slurmrestd", "sbatch", "sacct", "sacctmgr", "munged"),
    *("mariadbd", "mariadb-install-db", "ip", "unshare", "nsenter", "setpriv", "mount"),
)
_WRAPPED = ("sacct", "squeue", "scontrol", "sinfo", "sbatch", "scancel", "sdiag", "sshare")
_TEMPLATES = Path(__file__).parent / "slurm"
_CONTROLLERS = ("freezer", "memory", "cpuset", "devices", "cpuacct")

Tracking = Literal["cgroup", "linuxproc"]
"""How Slurm finds the processes of jobs."""

ENDED = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"}
    | {"OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"}
)
"""The states in which a job has ended for good."""


def missing() -> str:
    """Return why no cluster can run here, so far as can be told without trying; else nothing."""
    absent = [name for name in _PROGRAMS if _program(name) is None]
    if absent:
        return f"no {', '.join(absent)}: apt-get install --no-install-recommends {PACKAGES}"
    if os.geteuid():
        return "only root can make namespaces and start Slurm's daemons"
    return ""


def tracking_here() -> Tracking:
    """`cgroup` where the controllers of version 1 are mounted and can be written to."""
    roots = (f"/sys/fs/cgroup/{name}" for name in _CONTROLLERS)
    usable = all(os.path.isfile(f"{r}/tasks") and os.access(r, os.W_OK) for r in roots)
    return "cgroup" if usable else "linuxproc"


class SlurmCluster:
    """A cluster `peers` with the partitions of slurm/slurm.conf.in; usable as a context.

    `directory` holds everything. In `programs` are sacct, squeue, scontrol, sinfo, sbatch and
    scancel for root, which can be started from anywhere and pass the environment on. `enter`
    makes a command run inside, where the users are known and Slurm's processes have the numbers
    that Slurm knows; seen from outside they have others.
    """

    def __init__(self, tracking: Tracking | None = None) -> None:
        self.tracking = tracking or tracking_here()
        self.directory = Path()
        self._namespaces: Namespaces | None = None

    @property
    def programs(self) -> Path:
        return self.directory / "bin"

    @property
    def configuration(self) -> Path:
        return self.directory / "etc/slurm.conf"

    def home(self, user: str) -> Path:
        return self.directory / "home" / user

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def up(self) -> None:
        """Start everything, or raise NoNamespacesError, or RuntimeError with what the logs say."""
        # Not pytest's directory: users can't enter that, and a socket's path must be short.
        self.directory = Path(tempfile.mkdtemp(prefix="slurm-"))
        try:
            self._prepare()
            makes_cgroups = self.tracking == "cgroup"
            self._namespaces = Namespaces(self.directory, NODES if makes_cgroups else ())
        except BaseException:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise
        try:
            self._wrap_programs()
            self._start()
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """Stop everything and remove all traces; does nothing where there is nothing."""
        if self._namespaces is not None:
            self._namespaces.close()
            self._namespaces = None

    def enter(self, *command: str, user: str = "root") -> list[str]:
        """Return a command that runs `command` inside, as `user` in a clean environment."""
        assert self._namespaces is not None, "the cluster isn't up"
        home = str(self.directory if user == "root" else self.home(user))
        environment = {
            "LANG": "C.UTF-8",
            "USER": user,
            "LOGNAME": user,
            "HOME": home,
            "SHELL": "/bin/sh",
            "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
            "SLURM_CONF": str(self.configuration),
        }
        return self._namespaces.enter(
            *("setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"),
            *("env", "-i", "-C", home, *(f"{k}={v}" for k, v in environment.items())),
            *command,
        )

    def run(self, *command: str, user: str = "root", time_limit: float = 90) -> str:
        """Run a command inside and return its output, bytes that are no UTF-8 as surrogates."""
        done = subprocess.run(
            self.enter(*command, user=user),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=time_limit,
            check=False,
        )
        output = done.stdout.decode("utf-8", "surrogateescape")
        if done.returncode:
            said = done.stderr.decode(errors="replace")
            raise RuntimeError(f"{command[:3]}: status {done.returncode}: {output}{said}")
        return output

    def submit(self, user: str, *arguments: str) -> int:
        """Submit a batch job with sbatch, from the user's home, and give its id."""
        output = self.run("sbatch", "--parsable", *arguments, user=user)
        return int(output.split(";")[0])

    def states(self, *jobs: int) -> list[tuple[int, str]]:
        """Return the id and the state of each job, task of an array and part of a het job in sacct.

        The id is the one that sbatch gave. The state is empty while the row is a provisional one:
        up to five seconds after its start, also when it has ended, a job may have no partition
        and the name `allocation`, and be missing where sacct is asked for a window of time.
        """
        listed = ",".join(str(job) for job in jobs)
        output = self.run("sacct", "-nXP", "-j", listed, "-o", "JobID,Partition,State")
        found: list[tuple[int, str]] = []
        for line in output.splitlines():
            job, partition, state = line.split("|")
            number = int(job.partition("_")[0].partition("+")[0])
            found.append((number, state.split()[0] if partition else ""))
        return found

    def wait_for(
        self, job: int, states: Collection[str] = ENDED, *, time_limit: float = 240
    ) -> None:
        """Wait until sacct knows a job and all its tasks are in one of `states`."""
        last: list[str] = []

        def reached() -> bool:
            last[:] = [state for _, state in self.states(job)]
            return bool(last) and set(last) <= set(states)

        def reason() -> str:
            return f"job {job} isn't {' or '.join(states)} but {last}: {self.queue_and_nodes()}"

        _wait(reached, time_limit, reason)

    def queue_and_nodes(self) -> str:
        """Return which jobs have not ended, on which nodes or why not, and the nodes' states."""
        queue = self.run("squeue", "-h", "-o", "%A %j %T %R")
        return f"{queue}{self.run('sinfo', '-h', '-N', '-o', '%N %T %C %E')}"

    def _prepare(self) -> None:
        self.directory.chmod(0o755)
        for name in ("bin", "dev", "etc", "home", "log", "run", "state"):
            (self.directory / name).mkdir()
        by_cgroup = self.tracking == "cgroup"
        values = {
            "DIRECTORY": str(self.directory),
            "TRACKING": self.tracking,
            "GATHERING": "cgroup" if by_cgroup else "linux",
            "TASK_PLUGIN": "task/cgroup" if by_cgroup else "task/none",
            "PROLOG_FLAGS": "Contain" if by_cgroup else "Alloc",
        }
        for template in _TEMPLATES.glob("*.conf.in"):
            text = template.read_text()
            for name, value in values.items():
                text = text.replace(f"@{name}@", value)
            (self.directory / "etc" / template.stem).write_text(text)
        (self.directory / "etc/slurmdbd.conf").chmod(0o600)
        # The first line that fits is taken: ours.
        users = "".join(f"{n}:x:{i}:{i}::{self.home(n)}:/bin/sh\n" for n, i in USERS.items())
        groups = "".join(f"{n}:x:{i}:\n" for n, i in USERS.items())
        (self.directory / "etc/passwd").write_text(users + Path("/etc/passwd").read_text())
        (self.directory / "etc/group").write_text(groups + Path("/etc/group").read_text())
        for name, number in USERS.items():
            self.home(name).mkdir()
            os.chown(self.home(name), number, number)
        for number in (0, 1):
            card = self.directory / f"dev/nvidia{number}"
            os.mknod(card, 0o020666, os.makedev(195, number))

    def _wrap_programs(self) -> None:
        assert self._namespaces is not None
        for name in _WRAPPED:
            nsenter, *rest = self._namespaces.enter_in_place(_program(name) or name)
            command = " ".join([_program(nsenter) or nsenter, *rest])
            wrapper = self.programs / name
            wrapper.write_text(
                f'#!/bin/sh\nexport SLURM_CONF={self.configuration}\nexec {command} "$@"\n'
            )
            wrapper.chmod(0o755)

    def _start(self) -> None:
        try:
            self._start_munge()
            self._start_database()
            self._start_accounting()
            self._start_slurm()
        except (RuntimeError, TimeoutError, subprocess.SubprocessError) as error:
            raise RuntimeError(f"{error}\n{self._logs()}") from error

    def _start_munge(self) -> None:
        key = self.directory / "etc/munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        tokens = self.directory / "etc/jwt.key"
        tokens.write_bytes(os.urandom(32))
        tokens.chmod(0o400)
        self._daemon(
            *("munged", "--force", f"--key-file={key}"),
            f"--socket={self.directory}/run/munge.sock",
            f"--pid-file={self.directory}/run/munged.pid",
            f"--log-file={self.directory}/log/munged",
            f"--seed-file={self.directory}/state/munge.seed",
        )

    def start_rest(self, authentication: Literal["local", "jwt"]) -> Path:
        """Start slurmrestd for root at a socket, or for users with a token; return the socket."""
        place = self.directory / "rest"
        place.mkdir(exist_ok=True)
        # Neither root nor SlurmUser may run it, and it binds as its user.
        user = pwd.getpwnam("nobody")
        os.chown(place, user.pw_uid, user.pw_gid)
        path = place / authentication
        self._daemon(
            *(
                "setsid",
                "--fork",
                "env",
                *(["SLURM_JWT=daemon"] if authentication == "jwt" else []),
            ),
            "slurmrestd",
            *("-u", "nobody", "-g", str(user.pw_gid), "-a", f"rest_auth/{authentication}"),
            f"unix:{path}",
        )
        _wait(path.exists, 30, lambda: f"no slurmrestd: {self._logs()}")
        return path

    def make_token(self, file: Path, *, seconds: int = 3600) -> Path:
        """Write a token of root to a file that only root can read."""
        output = self.run("scontrol", "token", "username=root", f"lifespan={seconds}")
        file.touch(0o600)
        file.write_text(output.removeprefix("SLURM_JWT="))
        return file

    def _start_database(self) -> None:
        data = f"--datadir={self.directory}/state/database"
        self._daemon("mariadb-install-db", "--no-defaults", "--user=root", data, "--skip-test-db")
        path = f"{self.directory}/run/database"
        # Nobody but the jobs can reach it, and it lives for minutes: no grants, no logs to disk.
        self._daemon(
            *("setsid", "--fork", "mariadbd", "--no-defaults", "--user=root", data),
            *(f"--socket={path}", f"--pid-file={path}.pid", "--bind-address=127.0.0.1"),
            *("--skip-grant-tables", "--skip-networking=0", "--innodb-flush-method=nosync"),
            *("--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=64M"),
        )

        def answers() -> bool:
            with socket.socket(socket.AF_UNIX) as client:
                return client.connect_ex(path) == 0

        _wait(answers, 90, lambda: "MariaDB doesn't answer")

    def _start_accounting(self) -> None:
        self._daemon("slurmdbd")
        _wait(lambda: self._does("sacctmgr", "-n", "list", "cluster"), 90, lambda: "no slurmdbd")
        self.run("sacctmgr", "-i", "add", "cluster", "peers")
        self.run("sacctmgr", "-i", "add", "account", "physics", "chem")
        self.run("sacctmgr", "-i", "add", "user", ",".join(USERS), "account=physics")
        self.run("sacctmgr", "-i", "add", "user", "alice,bob", "account=chem")

    def _start_slurm(self) -> None:
        (self.directory / "state/slurmctld").mkdir()
        self._daemon("slurmctld")
        for node in NODES:
            (self.directory / f"state/slurmd.{node}").mkdir()
            self._daemon("slurmd", "-N", node)
        names = ",".join(NODES)

        def idle() -> bool:
            if not self._does("scontrol", "ping"):
                return False
            output = self.run("sinfo", "-h", "-n", names, "-N", "-o", "%N %T")
            return {f"{node} idle" for node in NODES} <= set(output.splitlines())

        _wait(idle, 90, lambda: f"not all idle: {self.run('sinfo', '-N')}")

    def _daemon(self, *command: str) -> None:
        """Start a program that goes into the background, or run one to its end."""
        with (self.directory / "log/start").open("ab") as log:
            subprocess.run(
                self.enter(*command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=300,
                check=True,
            )

    def _does(self, *command: str) -> bool:
        try:
            self.run(*command, time_limit=20)
        except (RuntimeError, subprocess.TimeoutExpired):
            return False
        return True

    def _logs(self) -> str:
        """Return the ends of all logs."""
        return "\n".join(
            f"{path.name}: {path.read_text(errors='replace')[-2000:]}"
            for path in sorted((self.directory / "log").iterdir())
        )


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")


def _wait(reached: Callable[[], bool], time_limit: float, reason: Callable[[], str]) -> None:
    deadline = time.monotonic() + time_limit
    while not reached():
        if time.monotonic() > deadline:
            raise TimeoutError(reason())
        time.sleep(0.1)
