"""File systems and a network for the emulated machine, mounted for a while."""

from __future__ import annotations

import os
import subprocess
import time
import traceback
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def mounted(*arguments: str) -> Generator[str]:
    """Mount something for a while; the last argument is the mount point."""
    os.makedirs(arguments[-1], exist_ok=True)
    subprocess.run(["mount", *arguments], check=True)
    try:
        yield arguments[-1]
    finally:
        subprocess.run(["umount", "-l", arguments[-1]], check=False)


@contextmanager
def file_systems() -> Generator[dict[str, str]]:
    """Mount those that there are; return places in them by name."""
    base = "/mnt"
    with ExitStack() as stack:
        places: dict[str, str] = {}
        disk = f"{base}/disk.img"
        subprocess.run(["truncate", "-s", "400M", disk], check=True)
        subprocess.run(["mkfs.ext4", "-q", "-F", disk], check=True)
        ext4 = stack.enter_context(mounted("-o", "loop", disk, f"{base}/ext4"))
        places["ext4"] = f"{ext4}/p"
        places["tmpfs"] = stack.enter_context(mounted("-t", "tmpfs", "t", f"{base}/tmpfs")) + "/p"
        for name in ("lower", "upper", "work", "exported", "behind"):
            os.mkdir(f"{ext4}/{name}")
        layers = f"lowerdir={ext4}/lower,upperdir={ext4}/upper,workdir={ext4}/work"
        with suppress(subprocess.CalledProcessError):
            overlay = mounted("-t", "overlay", "-o", layers, "o", f"{base}/overlay")
            places["overlay"] = stack.enter_context(overlay) + "/p"
        with suppress(subprocess.CalledProcessError):
            os.makedirs(f"{base}/fuse")
            subprocess.run(["bindfs", f"{ext4}/behind", f"{base}/fuse"], check=True)
            places["fuse"] = f"{base}/fuse/p"
        try:
            places["nfs"] = stack.enter_context(nfs(f"{ext4}/exported", f"{base}/nfs")) + "/p"
        except (subprocess.CalledProcessError, OSError):
            traceback.print_exc()
        yield places


@contextmanager
def nfs(exported: str, point: str) -> Generator[str]:
    """Export a directory and mount it over loopback."""
    subprocess.run(["modprobe", "nfsd"], check=True)
    subprocess.run(["modprobe", "nfsv4"], check=True)
    subprocess.run(["mount", "-t", "nfsd", "nfsd", "/proc/fs/nfsd"], check=False)
    for directory in ("/var/lib/nfs", "/run/rpc_pipefs", "/var/lib/nfs/v4recovery"):
        os.makedirs(directory, exist_ok=True)
    for file in ("/var/lib/nfs/etab", "/var/lib/nfs/rmtab", "/etc/exports"):
        Path(file).touch()
    subprocess.Popen(["rpc.mountd", "-F"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    options = "rw,no_root_squash,insecure,no_subtree_check,fsid=0"
    subprocess.run(["exportfs", "-o", options, f"127.0.0.1:{exported}"], check=True)
    subprocess.run(["rpc.nfsd", "-N", "3", "-V", "4", "2"], check=True)
    for _ in range(50):  # it is refused until the server runs
        with suppress(OSError):
            Path("/proc/fs/nfsd/v4_end_grace").write_text("Y")
            break
        time.sleep(0.2)
    with mounted("-t", "nfs4", "-o", "vers=4.2,soft,timeo=100", "127.0.0.1:/", point) as place:
        yield place


@contextmanager
def other_host() -> Generator[None]:
    """Have a network beside loopback: a network namespace at the other end of a veth pair."""
    for command in (
        "netns add other",
        "link add near type veth peer name far netns other",
        "addr add 10.99.0.1/24 dev near",
        "link set near up",
        "-n other addr add 10.99.0.2/24 dev far",
        "-n other link set far up",
    ):
        subprocess.run(["ip", *command.split()], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "netns", "delete", "other"], check=False)


@contextmanager
def all_processors() -> Generator[None]:
    """Have the machine use all its processors for a while; it starts with one."""
    others = sorted(Path("/sys/devices/system/cpu").glob("cpu[1-9]*/online"))
    for each in others:
        each.write_text("1")
    try:
        yield
    finally:
        for each in others:
            each.write_text("0")
