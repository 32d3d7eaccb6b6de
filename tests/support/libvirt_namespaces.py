"""Hosts with a privileged libvirt daemon, each in namespaces of its own. Root only."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from pathlib import Path

from tests.support.libvirt_hosts import LibvirtHost
from tests.support.running import until

_PLACES = (
    "/etc/libvirt",
    "/run/libvirt",
    "/var/lib/libvirt",
    "/var/cache/libvirt",
    "/var/log/libvirt",
)
_USERS = {
    "/etc/passwd": "libvirt-qemu:x:64055:64055::/nonexistent:/usr/sbin/nologin\n",
    "/etc/group": "libvirt-qemu:x:64055:\nlibvirt:x:64056:\n",
}
_PORT = 16509
_LIBVIRTD = """\
host_uuid = "0000000{number}-5555-6666-7777-888888888888"
listen_tls = 0
listen_tcp = 1
auth_tcp = "none"
auth_unix_rw = "none"
"""
_QEMU = """\
security_driver = "none"
user = "root"
group = "root"
dynamic_ownership = 0
cgroup_controllers = []
namespaces = []
stdio_handler = "file"
"""
_BRIDGE = f"cc{os.getpid()}"
_NETWORK = "10.99.7"


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=30)


class PrivilegedHost(LibvirtHost):
    """A host with its own network, name and directories of libvirt, at a bridge with the other."""

    def __init__(self, site: Path, name: str, number: int) -> None:
        self.name = name
        self.directory = site / name
        self.address = f"{_NETWORK}.{number}"
        self.process = None
        for place in _PLACES:
            self._at(place).mkdir(parents=True)
            os.makedirs(place, exist_ok=True)
        self._at("/etc/libvirt/libvirtd.conf").write_text(_LIBVIRTD.format(number=number))
        self._at("/etc/libvirt/qemu.conf").write_text(_QEMU)
        if number == 1:
            _run("ip", "link", "add", _BRIDGE, "type", "bridge")
            _run("ip", "address", "add", f"{_NETWORK}.254/24", "dev", _BRIDGE)
            _run("ip", "link", "set", _BRIDGE, "up")
        for place, entry in _USERS.items():  # libvirt looks this user up, and then uses root
            self._at(place).write_text(Path(place).read_text() + entry)
        mounts = "; ".join(
            f"mount --bind {self._at(place)} {place}" for place in (*_PLACES, *_USERS)
        )
        self._holder = subprocess.Popen(
            ["unshare", "-n", "-m", "-u", "sh", "-c",
             f"{mounts}; hostname {name}; echo ready; exec sleep infinity"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"ready\n"
        near, far = f"{_BRIDGE}v{number}", f"{_BRIDGE}w{number}"
        _run("ip", "link", "add", near, "type", "veth", "peer", "name", far)
        _run("ip", "link", "set", near, "master", _BRIDGE, "up")
        _run("ip", "link", "set", far, "netns", str(self._holder.pid))
        for words in (
            f"address add {self.address}/24 dev {far}",
            f"link set {far} up",
            "link set lo up",
        ):
            _run(*self._inside, "ip", *words.split())
        self.start()

    @property
    def uri(self) -> str:
        return f"qemu+tcp://{self.address}/system"

    @property
    def tcp_uri(self) -> str:
        return self.uri

    @property
    def migrate_uri(self) -> str:
        return f"tcp://{self.address}"

    @property
    def run_directory(self) -> Path:
        return self._at("/run/libvirt") / "qemu"

    def start(self) -> None:
        """Start the daemon, also again; its machines go on meanwhile."""
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self._inside, "libvirtd", "--listen", "-p", "/run/libvirt/libvirtd.pid"],
                stdout=log,
                stderr=log,
            )
        until(self._answers)

    def stop(self) -> None:
        """End the daemon, its machines and the namespaces."""
        self.kill()
        for file in self.run_directory.glob("*.pid"):
            with contextlib.suppress(OSError, ValueError):
                os.kill(int(file.read_text()), signal.SIGKILL)
        self._holder.kill()
        self._holder.communicate()
        if self.name == "s1":
            _run("ip", "link", "delete", _BRIDGE)

    def _answers(self) -> bool:
        try:
            socket.create_connection((self.address, _PORT), timeout=5).close()
        except OSError:
            return False
        return True

    @property
    def _inside(self) -> tuple[str, ...]:
        return ("nsenter", "-t", str(self._holder.pid), "-n", "-m", "-u")

    def _at(self, place: str) -> Path:
        return self.directory / place[1:]
