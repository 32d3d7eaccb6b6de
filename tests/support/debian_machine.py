"""A virtual machine with a kernel of Debian, whose files are those of this machine.

The kernel that runs the tests may refuse programs that others take, and has few file systems.
Here qemu starts Debian's kernel without any disk: the root is this machine's, read-only, below a
layer in memory. qemu emulates the processor, which works everywhere, but takes longer.
"""

from __future__ import annotations

import faulthandler
import lzma
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.support.effort import IS_NIGHTLY
from tests.support.paths import ROOT

PACKAGE = "linux-image-amd64"
_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
_LATER = ("loop", "ext4", "fuse", "nfsd", "nfsv4", "veth")
_KERNEL_OPTIONS = (
    "quiet loglevel=0 panic=-1"
    # An emulated processor needs no protection, and nobody minds being interrupted by RCU.
    " mitigations=off no5lvl audit=0 rcupdate.rcu_expedited=1"
    # Whoever changes code waits for all processors, which takes long: more come later.
    " maxcpus=1"
)
_LONGEST = 2400
"""Seconds that a machine may take: about 300 alone, but other tests share the processors."""

_START = "setpriv --pdeathsig KILL nice -n -10"
"""A machine ends with the test, and root's has precedence: it takes longest, and others wait."""

_BEGIN, _END = "ccagent-output-begins", "ccagent-output-ends"

_INIT = """#!/bin/busybox sh
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t devtmpfs dev /dev
for module in {modules}; do insmod /modules/$module; done
share="trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro"
mount -t 9p -o $share system /lower
mount -t 9p -o $share host /host
mount -t tmpfs tmpfs /upper
mkdir -p /upper/files /upper/work /root
mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work root /root
cd /root
mount -t proc proc proc
mount -t sysfs sys sys
mount -t devtmpfs dev dev
mkdir -p dev/shm usr/lib/modules/$(uname -r)
mount -t tmpfs tmpfs dev/shm
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs mnt
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t bpf bpf sys/fs/bpf
mount -t debugfs debugfs sys/kernel/debug
for path in {directory} {root}; do
    mkdir -p .$path
    mount --bind /host$path .$path
done
mount --bind /host{tree} usr/lib/modules/$(uname -r)
ip link set lo up
hostname c1-1
for module in {later}; do chroot . /usr/sbin/modprobe $module; done
echo {begin}
chroot . /usr/bin/env PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TMPDIR=/tmp \
    PYTHONDONTWRITEBYTECODE=1 {command}
echo "$? {end}"
echo o > /proc/sysrq-trigger
sleep 60
"""


class EmulatedSystem(NamedTuple):
    """A machine and its programs, beside the kernel.

    root: of its programs, which are not this machine's on another architecture.
    """

    emulator: str
    console: str
    root: Path
    python: str
    variables: Mapping[str, str]


THIS_SYSTEM = EmulatedSystem(
    # Without erms and fsrm the kernel copies words and not bytes: twice as fast, emulated. smap and
    # smep protect it from programs, at each copy.
    emulator="qemu-system-x86_64 -cpu max,-erms,-fsrm,-smap,-smep",
    console="ttyS0",
    root=Path("/"),
    python=sys.executable,
    variables={"PYTHONPATH": f"{ROOT}:{ROOT}/src"},
)


class DebianKernel:
    """The files of a package with a kernel."""

    def __init__(self, root: Path) -> None:
        self.image = next(iter(sorted(root.glob("**/vmlinuz*"))))
        self.tree = next(iter(sorted(root.glob("**/lib/modules/*/kernel")))).parent
        self.release = self.tree.name
        if not (self.tree / "modules.dep").exists():
            base = str(self.tree).partition("/lib/modules/")[0]
            subprocess.run(["depmod", "-b", base, self.release], check=True, capture_output=True)

    def modules(self, names: Iterable[str]) -> list[Path]:
        """The files of modules and of those that they need, in the order of loading."""
        needed: dict[str, list[str]] = {}
        for line in (self.tree / "modules.dep").read_text().splitlines():
            file, _, others = line.partition(":")
            needed[_module_name(file)] = [file, *others.split()]
        found: list[Path] = []
        for name in names:  # those that are missing are built in
            found += map(self.tree.joinpath, reversed(needed.get(name, [])))
        return list(dict.fromkeys(found))


def download_kernel(directory: Path) -> DebianKernel:
    """Get Debian's kernel of this release, without installing it."""
    depends = subprocess.run(
        ["apt-cache", "depends", PACKAGE], capture_output=True, text=True, check=True
    ).stdout
    name = re.findall(r"Depends: (linux-image-\S+)", depends)[0]
    subprocess.run(
        ["apt-get", "-o", "APT::Sandbox::User=root", "download", name],
        cwd=directory, check=True, capture_output=True,
    )  # fmt: skip
    (package,) = directory.glob("*.deb")
    subprocess.run(["dpkg-deb", "-x", package, directory / "kernel"], check=True)
    package.unlink()
    return DebianKernel(directory / "kernel")


def run_in_machine(
    kernel: DebianKernel,
    directory: Path,
    module: str,
    *arguments: str,
    system: EmulatedSystem = THIS_SYSTEM,
    options: str = "-accel tcg,thread=multi -smp 2",
    time_limit: float = _LONGEST,
) -> str:
    """Run a module of Python on a machine with this kernel; return what it prints."""
    # pytest ends a process whose test takes ten minutes; the machine has a limit of its own.
    faulthandler.cancel_dump_traceback_later()
    script = directory / "guest.sh"
    words = [system.python, "-m", module, *arguments]
    variables = {
        **system.variables,
        "PYTHONPYCACHEPREFIX": str(_compile(directory, module)),
        "HYPOTHESIS_PROFILE": "nightly" if IS_NIGHTLY else "",
    }
    for name, value in variables.items():
        words.insert(0, f"{name}={value}")
    script.write_text(f"cd {ROOT} && exec env {' '.join(words)}\n")
    archive = _make_archive(kernel, directory, f"sh /{script.name}", script, system)
    image = directory / "vmlinux"
    image.write_bytes(_kernel_in(kernel.image.read_bytes()))
    share = "-fsdev local,id={0},path={1},security_model=none,readonly=on,multidevs=remap"
    share += " -device virtio-9p-pci,fsdev={0},mount_tag={0}"
    shares = f"{share.format('system', system.root)} {share.format('host', '/')}"
    machine = "-m 2048 -display none -no-reboot -nic none -monitor none -serial stdio"
    done = subprocess.run(
        [*f"{_START} {system.emulator} {options} {machine} {shares}".split(),
         "-kernel", image, "-initrd", archive,
         "-append", f"console={system.console} {_KERNEL_OPTIONS}"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
        timeout=time_limit, check=False,
    )  # fmt: skip
    said = done.stdout.replace("\r", "")
    output = said.partition(f"{_BEGIN}\n")[2]
    match = re.search(rf"(\d+) {_END}", output)
    if match is None or match[1] != "0":
        raise RuntimeError(f"{kernel.release}: {said[-3000:]}{done.stderr[-1000:]}")
    return output[: match.start()]


def _kernel_in(image: bytes) -> bytes:
    """Return the kernel of a bzImage, which qemu starts too: unpacking it there takes long.

    See the kernel's Documentation/arch/x86/boot.rst; what is not packed with xz stays as it is.
    """
    if image[0x202:0x206] != b"HdrS":
        return image
    sectors = image[0x1F1]
    begin, length = struct.unpack_from("<2I", image, 0x248)
    begin += (sectors + 1) * 512
    packed = image[begin : begin + length]
    if not packed.startswith(b"\xfd7zXZ\0"):
        return image
    return lzma.LZMADecompressor().decompress(packed)  # the size follows it


def _compile(directory: Path, module: str) -> Path:
    """Write the bytecode of a module and its imports; return where. Emulated, it takes long."""
    bytecode = directory / "bytecode"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(
        [sys.executable, "-c", f"import {module}, encodings.idna"],
        cwd=ROOT, check=True, env=environment | {"PYTHONPYCACHEPREFIX": str(bytecode)},
    )  # fmt: skip
    return bytecode


def _make_archive(
    kernel: DebianKernel, directory: Path, command: str, script: Path, system: EmulatedSystem
) -> Path:
    """Write the file system that the kernel starts from."""
    files: dict[str, bytes] = {"bin/busybox": (system.root / "bin/busybox").read_bytes()}
    names: list[str] = []
    for path in kernel.modules(_MODULES):
        names.append(_module_name(path.name))
        files[f"modules/{names[-1]}"] = _unpacked(path)
    init = _INIT.format(
        modules=" ".join(names), later=" ".join(_LATER), tree=kernel.tree, directory=directory,
        root=ROOT, begin=_BEGIN, end=_END, command=f"sh -c 'exec {command}'",
    )  # fmt: skip
    # The root that the kernel starts from is another one than that of the programs.
    init = init.replace("cd /root\n", f"cd /root\ncp /{script.name} .\n", 1)
    files |= {"init": init.encode(), script.name: script.read_bytes()}
    archive = directory / "start.cpio"
    directories = ("bin", "modules", "proc", "dev", "lower", "upper", "host")
    archive.write_bytes(b"".join(_cpio(directories, files)))
    return archive


def _cpio(directories: Iterable[str], files: dict[str, bytes]) -> Iterator[bytes]:
    """Pack files in the format `newc`, see cpio(5)."""
    entries = [(name, b"", stat.S_IFDIR | 0o755) for name in directories]
    entries += [(name, content, stat.S_IFREG | 0o755) for name, content in files.items()]
    entries.append(("TRAILER!!!", b"", 0))
    for inode, (name, content, mode) in enumerate(entries, start=1):
        raw = name.encode() + b"\0"
        fields = (inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(raw), 0)
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + raw
        yield head + bytes(-len(head) % 4) + content + bytes(-len(content) % 4)


def _module_name(file: str) -> str:
    return os.path.basename(file).partition(".ko")[0].replace("-", "_")


def _unpacked(path: Path) -> bytes:
    content = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(content)
    if path.suffix == ".zst":
        zstd = shutil.which("zstd")
        assert zstd, "zstd is not installed"
        return subprocess.run([zstd, "-dc"], input=content, capture_output=True, check=True).stdout
    return content
