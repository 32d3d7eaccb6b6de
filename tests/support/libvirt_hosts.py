"""Two hosts: unprivileged libvirt daemons of different identity, and the smallest guest for TCG."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from tests.support.ports import free_port
from tests.support.running import until

GUEST = Path(__file__).parent / "libvirt" / "guest.S"
_USER = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
_QEMU = """\
security_driver = "none"
stdio_handler = "file"
migration_port_min = {port}
migration_port_max = {last}
"""
_DOMAIN = """\
<domain type='qemu'>
  <name>{name}</name>
  <memory unit='MiB'>{memory}</memory>
  <vcpu>{vcpus}</vcpu>
  <os><type arch='x86_64' machine='pc'>hvm</type><kernel>{guest}</kernel></os>
  <features><acpi/></features>
  <on_poweroff>destroy</on_poweroff>
  <on_crash>destroy</on_crash>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <controller type='usb' model='none'/>
    <serial type='file'><source path='{ticks}' append='on'/></serial>
    <memballoon model='none'/>
  </devices>
</domain>
"""


class LibvirtHost:
    """A daemon of libvirt with directories of its own. All its programs are of nobody."""

    def __init__(self, site: Path, name: str, number: int) -> None:
        self.name = name
        self.directory = site / name
        for part in ("config/libvirt", "run", "cache", "data"):
            (self.directory / part).mkdir(parents=True)
        port, self.port = free_port(), free_port()
        (self.directory / "config/libvirt/qemu.conf").write_text(
            _QEMU.format(port=port, last=port + 20)
        )
        (self.directory / "config/libvirt/libvirtd.conf").write_text(
            f'host_uuid = "0000000{number}-1111-2222-3333-444444444444"\nauth_unix_rw = "none"\n'
            'listen_tls = 0\nlisten_tcp = 1\nlisten_addr = "127.0.0.1"\nauth_tcp = "none"\n'
            f'tcp_port = "{self.port}"\n'
        )
        self.environment = {
            "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin", "HOME": str(self.directory),
            "TMPDIR": os.environ.get("TMPDIR", "/tmp"),
            "XDG_CONFIG_HOME": f"{self.directory}/config",
            "XDG_RUNTIME_DIR": f"{self.directory}/run", "XDG_CACHE_HOME": f"{self.directory}/cache",
            "XDG_DATA_HOME": f"{self.directory}/data",
        }  # fmt: skip
        if os.geteuid() == 0:
            for path in (self.directory, *self.directory.rglob("*")):
                shutil.chown(path, "nobody", "nogroup")
        (self.directory / "run").chmod(0o700)
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def socket(self) -> Path:
        return self.directory / "run/libvirt/libvirt-sock"

    @property
    def uri(self) -> str:
        return f"qemu:///session?socket={self.socket}"

    @property
    def tcp_uri(self) -> str:
        """The URI by which another daemon reaches this one."""
        return f"qemu+tcp://127.0.0.1:{self.port}/session"

    @property
    def migrate_uri(self) -> str:
        """The URI of QEMU's data to this host."""
        return "tcp://127.0.0.1"

    @property
    def run_directory(self) -> Path:
        return self.directory / "run/libvirt/qemu/run"

    def start(self) -> None:
        """Start the daemon, also again; its machines go on meanwhile."""
        user = _USER if os.geteuid() == 0 else []
        self.socket.unlink(missing_ok=True)
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*user, "libvirtd", "--listen", "-p", str(self.directory / "pid")],
                env=self.environment, stdout=log, stderr=log,
            )  # fmt: skip
        until(self.socket.exists)

    def kill(self) -> None:
        """Kill the daemon with -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def virsh(self, *arguments: str) -> str:
        done = subprocess.run(
            ["virsh", "-q", "-c", self.uri, *arguments],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def machines(self) -> dict[str, str]:
        """Return the states of all machines, by name."""
        lines = self.virsh("list", "--all").splitlines()
        parts = [line.split(None, 2) for line in lines if line.strip()]
        return {name: state.strip() for _, name, state in parts}

    def process_of(self, name: str) -> int:
        """Return the process of a machine by libvirt's pid file; 0 without one."""
        with contextlib.suppress(OSError, ValueError):
            return int((self.run_directory / f"{name}.pid").read_text())
        return 0

    def stop(self) -> None:
        """End the daemon and its machines."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        for file in self.run_directory.glob("*.pid"):
            with contextlib.suppress(OSError, ValueError):
                process = int(file.read_text())
                if str(self.directory).encode() in Path(f"/proc/{process}/environ").read_bytes():
                    os.kill(process, signal.SIGKILL)


class LibvirtSite:
    """Two hosts s1 and s2, and a guest that both can read. Short paths: sockets need them."""

    def __init__(self, kind: type[LibvirtHost] = LibvirtHost) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="m"))
        self.directory.chmod(0o755)
        self.guests = {
            "guest": self._build("guest"),
            "deaf": self._build("deaf", "DEAF=1"),
            "busy": self._build("busy", "BUSY=1", "PASSES=1"),
            "hog": self._build("hog", "BUSY=1", "PASSES=300"),
        }
        self.hosts = [kind(self.directory, f"s{n}", n) for n in (1, 2)]

    def _build(self, name: str, *symbols: str) -> Path:
        made, target = self.directory / f"{name}.o", self.directory / name
        options = [word for symbol in symbols for word in ("--defsym", symbol)]
        subprocess.run(["as", "--32", *options, "-o", str(made), str(GUEST)], check=True)
        link = ["ld", "-m", "elf_i386", "-n", "-Ttext=0x100000", "-o", str(target), str(made)]
        subprocess.run(link, check=True)
        return target

    def definition(
        self, name: str, *, guest: str = "guest", memory: int = 8, vcpus: int = 1
    ) -> Path:
        """Write the definition of a machine, and return the file."""
        self.ticks_file(name).touch()
        self.ticks_file(name).chmod(0o666)
        file = self.directory / f"{name}.xml"
        file.write_text(
            _DOMAIN.format(
                name=name, guest=self.guests[guest], ticks=self.ticks_file(name), memory=memory,
                vcpus=vcpus,
            )
        )  # fmt: skip
        return file

    def ticks_file(self, name: str) -> Path:
        return self.directory / f"{name}.ticks"

    def ticks(self, name: str) -> int:
        """Return the number of ticks that a guest has written."""
        return self.ticks_file(name).stat().st_size

    def lives(self, name: str) -> None:
        """Wait until a guest has ticked again."""
        before = self.ticks(name)
        until(lambda: self.ticks(name) > before)

    def where(self, name: str) -> list[tuple[str, str]]:
        """Return the hosts that know a machine, each with its state."""
        return [
            (host.name, host.machines()[name]) for host in self.hosts if name in host.machines()
        ]

    def stop(self) -> None:
        for host in self.hosts:
            host.stop()
        shutil.rmtree(self.directory, ignore_errors=True)
