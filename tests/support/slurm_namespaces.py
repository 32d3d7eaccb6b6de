"""Namespaces for processes, network and mounts: a cluster runs in them and leaves nothing.

A process of its own (`main`) holds them until its standard input ends. It then stops whatever
runs in them and removes the cluster's directory and cgroups: so however the tests come to their
end, killed too, nothing is left.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

_CGROUPS = Path("/sys/fs/cgroup")

# The number of the first process is read from the /proc of outside, before another is mounted.
# All of /etc is a copy: a mount on /etc/passwd goes when somebody outside renames another file to
# that name, as useradd does.
# Without a second address Slurm finds none: it resolves with AI_ADDRCONFIG, for which 127/8
# doesn't count. What ignores SIGCHLD needn't wait for the orphans that it is given.
_INSIDE = """
set -eu
read -r pid rest </proc/self/stat
mount -t proc proc /proc
cp -a /etc "$1/machine"
cp "$1/etc/passwd" "$1/etc/group" "$1/machine"
mount --bind "$1/machine" /etc
ip link set lo up
ip address add 10.99.0.1/32 dev lo
echo "$pid"
exec env --ignore-signal=CHLD sleep infinity >/dev/null
"""


class NoNamespacesError(Exception):
    """The machine doesn't let us make namespaces."""


class Namespaces:
    """The namespaces of the cluster in `directory`, whose `nodes` make cgroups named after them.

    `directory`/etc/{passwd,group} stand for those of the machine inside. As cgroups are the
    machine's, one cluster waits for another that makes some.
    """

    def __init__(self, directory: Path, nodes: Sequence[str] = ()) -> None:
        self._holder = subprocess.Popen(
            [sys.executable, str(Path(__file__)), str(directory), *nodes],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # an interrupt from the keyboard is for the tests alone
        )
        try:
            self.pid = self._first_process()
        except BaseException:
            self.close()
            raise

    def enter(self, *command: str) -> list[str]:
        """Return a command that runs `command` inside."""
        return ["nsenter", f"--target={self.pid}", "--pid", "--net", "--mount", "--", *command]

    def enter_in_place(self, *command: str) -> list[str]:
        """Return a command that becomes `command` inside, so that signals reach it.

        It isn't among the processes of inside, and has no /proc/self there.
        """
        return ["nsenter", f"--target={self.pid}", "--net", "--mount", "--", *command]

    def close(self) -> None:
        """End everything, and return when it is gone."""
        self._holder.communicate()

    def _first_process(self) -> int:
        assert self._holder.stdout is not None
        ready, _, _ = select.select([self._holder.stdout], [], [], 300)
        if not ready:
            raise NoNamespacesError("another cluster has been running here for five minutes")
        line = self._holder.stdout.readline()
        if not line:
            _, said = self._holder.communicate()
            raise NoNamespacesError(said.decode(errors="replace").strip())
        return int(line)


def main(directory: Path, nodes: Sequence[str]) -> int:
    """Hold the namespaces until standard input ends."""
    with _turn() if nodes else contextlib.nullcontext():
        _remove_cgroups(nodes)
        first = subprocess.Popen(
            # Even if this process is killed, those inside end.
            [
                *("setpriv", "--pdeathsig=KILL"),
                *("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child=KILL"),
                *("sh", "-c", _INSIDE, "sh", str(directory)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        assert first.stdout is not None
        line = first.stdout.readline()
        try:
            if not line:
                return 1
            os.write(sys.stdout.fileno(), line)
            sys.stdin.buffer.read()
        finally:
            # When the first process of a namespace has ended, all others have.
            if line:
                os.kill(int(line), signal.SIGKILL)
            while not _has_ended(first):
                _thaw(nodes)
            _remove_cgroups(nodes)
            shutil.rmtree(directory)
    return 0


@contextlib.contextmanager
def _turn() -> Generator[None, None, None]:
    """Wait until no other process is in here; a name in the abstract namespace leaves no file."""
    with socket.socket(socket.AF_UNIX) as lock:
        while True:
            try:
                lock.bind("\0ccagent-tests-slurm")
                break
            except OSError:
                # Standard input ends when nobody wants the cluster any more.
                if select.select([sys.stdin], [], [], 0.1)[0]:
                    sys.exit(1)
        yield


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(0.2)
    except subprocess.TimeoutExpired:
        return False
    return True


def _thaw(nodes: Sequence[str]) -> None:
    """Resume suspended jobs: what is frozen can't be killed. Groups vanish meanwhile."""
    for node in nodes:
        with contextlib.suppress(OSError):
            for state in _CGROUPS.glob(f"freezer/slurm_{node}/**/freezer.state"):
                state.write_text("THAWED")


def _remove_cgroups(nodes: Sequence[str]) -> None:
    for node in nodes:
        for top in _CGROUPS.glob(f"*/slurm_{node}"):
            deadline = time.monotonic() + 60
            while top.is_dir() and time.monotonic() < deadline:
                for directory, _, _ in os.walk(top, topdown=False):
                    # Busy until the kernel has put the last process away.
                    with contextlib.suppress(OSError):
                        os.rmdir(directory)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
