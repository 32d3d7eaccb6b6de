"""The keys of the table [exporter], their checks, and the names of the collectors."""

from __future__ import annotations

import ipaddress
import os
import re
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, get_args

from msgspec import Meta

from ccagent.config.duration import Duration
from ccagent.config.settings import Settings
from ccagent.errors import CcagentError, nearest
from ccagent.net.urls import is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterator


SYSTEMD = "systemd"
"""The value of `listen` for the sockets that systemd passes."""

NameSet = Literal[
    "ccagent", "node_exporter", "cgroup_exporter", "dcgm", "lustre", "ceems", "jobstats",
    "slurm-job-exporter", "omnistat", "slurm",
]  # fmt: skip
NAME_SETS: tuple[NameSet, ...] = get_args(NameSet)
"""The sets of metric names."""

_NODE_EXPORTER = "ccagent.exporter.node_exporter"
_HERE = "ccagent.exporter"
READER = f"{_HERE}.own_metrics:ReaderCollector"

COLLECTORS: dict[str, dict[str, str]] = {
    "ccagent": {
        "own": f"{_HERE}.own_metrics:OwnCollector",
        "jobs": f"{_HERE}.job_metrics:JobCollector",
        "jobio": f"{_HERE}.job_io_metrics:JobIoCollector",
        "gpus": f"{_HERE}.gpu_metrics:GpuCollector",
        "energy": f"{_HERE}.own_metrics:EnergyCollector",
    },
    "node_exporter": {
        "arp": f"{_NODE_EXPORTER}.network:read_arp",
        "bonding": f"{_NODE_EXPORTER}.network:read_bonding",
        "conntrack": f"{_NODE_EXPORTER}.network:read_conntrack",
        "cpu": f"{_NODE_EXPORTER}.kernel:CpuCollector",
        "cpufreq": f"{_NODE_EXPORTER}.kernel:CpufreqCollector",
        "diskstats": f"{_NODE_EXPORTER}.devices:DiskCollector",
        "dmi": f"{_NODE_EXPORTER}.system:DmiCollector",
        "edac": f"{_NODE_EXPORTER}.hardware:EdacCollector",
        "entropy": f"{_NODE_EXPORTER}.system:read_entropy",
        "filefd": f"{_NODE_EXPORTER}.system:read_filefd",
        "filesystem": f"{_NODE_EXPORTER}.devices:FilesystemCollector",
        "hwmon": f"{_NODE_EXPORTER}.hardware:HwmonCollector",
        "infiniband": f"{_NODE_EXPORTER}.devices:read_infiniband",
        "interrupts": f"{_NODE_EXPORTER}.kernel:read_interrupts",
        "kernel_hung": f"{_NODE_EXPORTER}.system:read_kernel_hung",
        "loadavg": f"{_NODE_EXPORTER}.kernel:read_loadavg",
        "mdadm": f"{_NODE_EXPORTER}.devices:read_mdadm",
        "meminfo": f"{_NODE_EXPORTER}.kernel:read_meminfo",
        "mountstats": f"{_NODE_EXPORTER}.nfs:read_mountstats",
        "netclass": f"{_NODE_EXPORTER}.network:NetclassCollector",
        "netdev": f"{_NODE_EXPORTER}.network:NetdevCollector",
        "netstat": f"{_NODE_EXPORTER}.network:read_netstat",
        "nfs": f"{_NODE_EXPORTER}.nfs:read_nfs",
        "nfsd": f"{_NODE_EXPORTER}.nfs:read_nfsd",
        "os": f"{_NODE_EXPORTER}.system:read_os",
        "powersupplyclass": f"{_NODE_EXPORTER}.hardware:read_powersupplyclass",
        "pressure": f"{_NODE_EXPORTER}.kernel:read_pressure",
        "process": f"{_NODE_EXPORTER}.system:read_process",
        "processes": f"{_NODE_EXPORTER}.system:read_processes",
        "rapl": f"{_NODE_EXPORTER}.hardware:RaplCollector",
        "schedstat": f"{_NODE_EXPORTER}.kernel:read_schedstat",
        "selinux": f"{_NODE_EXPORTER}.system:read_selinux",
        "sockstat": f"{_NODE_EXPORTER}.network:read_sockstat",
        "softirqs": f"{_NODE_EXPORTER}.kernel:read_softirqs",
        "softnet": f"{_NODE_EXPORTER}.network:read_softnet",
        "stat": f"{_NODE_EXPORTER}.kernel:read_stat",
        "systemd": f"{_NODE_EXPORTER}.systemd:SystemdCollector",
        "tcpstat": f"{_NODE_EXPORTER}.network:read_tcpstat",
        "textfile": f"{_HERE}.textfile:TextfileCollector",
        "thermal_zone": f"{_NODE_EXPORTER}.hardware:read_thermal_zone",
        "time": f"{_NODE_EXPORTER}.system:read_time",
        "timex": f"{_NODE_EXPORTER}.system:read_timex",
        "udp_queues": f"{_NODE_EXPORTER}.network:read_udp_queues",
        "uname": f"{_NODE_EXPORTER}.system:read_uname",
        "vmstat": f"{_NODE_EXPORTER}.kernel:read_vmstat",
    },
    "cgroup_exporter": {"cgroups": f"{_HERE}.job_metrics:CgroupExporterCollector"},
    "dcgm": {"dcgm": f"{_HERE}.gpu_metrics:DcgmCollector"},
    "lustre": {"lustre": f"{_HERE}.lustrefs:LustrefsCollector"},
    "ceems": {
        "ceems": f"{_HERE}.job_metrics:CeemsCollector",
        "ceems-ebpf": f"{_HERE}.job_io_metrics:CeemsIoCollector",
        "ceems-rdma": f"{_HERE}.job_io_metrics:CeemsRdmaCollector",
    },
    "jobstats": {"jobstats": f"{_HERE}.community_metrics:JobstatsCollector"},
    "slurm-job-exporter": {
        "slurm-job-exporter": f"{_HERE}.community_metrics:SlurmJobExporterCollector"
    },
    "omnistat": {"omnistat": f"{_HERE}.community_metrics:OmnistatCollector"},
    "slurm": {
        "slurm": f"{_HERE}.slurm_exporter:SlurmExporterCollector",
        "slurm-fairshare": f"{_HERE}.slurm_controller:FairshareCollector",
        "slurm-licenses": f"{_HERE}.slurm_controller:LicensesCollector",
        "slurm-reservations": f"{_HERE}.slurm_controller:ReservationsCollector",
        "slurm-scheduler": f"{_HERE}.slurm_controller:SchedulerCollector",
    },
}
"""Collectors by set of names: name to `module:object`, a class or a function of the node."""
_ON_DEMAND = frozenset({"interrupts", "mountstats", "processes", "softirqs", "systemd", "tcpstat"})
"""Those that node_exporter leaves out by default, too."""

_PATH = re.compile(r"/[!-~]+")
_FORBIDDEN = frozenset("?#%")
_MORE_JOBS = 50
"""Jobs beside one per hwthread: Slurm may share hwthreads, and ended jobs linger."""


class Address(NamedTuple):
    """An address to listen on. host: "" for all addresses."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine can connect to the address."""
        return is_loopback(self.host)


def parse_address(text: str) -> Address:
    """Parse `127.0.0.1:9500`, `[::1]:9500` or `:9500`. Raise ValueError for any other text."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: put IPv6 addresses in brackets: [::1]:9500")
    if not colon or not re.fullmatch("[0-9]{1,5}", port) or not 0 <= int(port) <= 65535:
        raise ValueError(f"{text!r}: expected ADDRESS:PORT, such as 127.0.0.1:9500")
    if host not in {"", "localhost"}:
        try:
            ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            raise ValueError(f"{text!r}: {host!r} is not an IP address") from None
    return Address(host, int(port))


class NodeExporterSettings(Settings, frozen=True, kw_only=True):
    """The keys of [exporter.node-exporter]: regular expressions, as flags of node_exporter."""

    disk_exclude: Annotated[
        str, Meta(description="devices without node_disk_*; a regular expression")
    ] = r"^(z?ram|loop|fd|(h|s|v|xv)d[a-z]|nvme\d+n\d+p)\d+$"
    filesystem_exclude: Annotated[
        str, Meta(description="mount points without node_filesystem_*; a regular expression")
    ] = r"^/(dev|proc|run|sys|mnt|media|var/lib/docker/.+|var/lib/containers/storage/.+)($|/)"
    filesystem_types_exclude: Annotated[
        str, Meta(description="file system types without node_filesystem_*; a regular expression")
    ] = (
        r"^(autofs|binfmt_misc|bpf|cgroup2?|configfs|debugfs|devpts|devtmpfs|fusectl|hugetlbfs"
        r"|iso9660|mqueue|nsfs|overlay|proc|procfs|pstore|rpc_pipefs|securityfs|selinuxfs|squashfs"
        r"|sysfs|tracefs)$"
    )
    network_exclude: Annotated[
        str, Meta(description="interfaces without traffic counters; a regular expression")
    ] = r"^lo$"
    systemd_exclude: Annotated[
        str, Meta(description="units of systemd without series; a regular expression")
    ] = r".+\.(automount|device|mount|scope|slice|target)"

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            try:
                re.compile(getattr(self, name))
            except re.error as error:
                key = name.replace("_", "-")
                raise ValueError(f"{key}: invalid regular expression: {error}") from None


class ExporterSettings(Settings, frozen=True, kw_only=True):
    """The keys of the table [exporter]."""

    listen: Annotated[
        tuple[str, ...],
        Meta(
            description="ADDRESS:PORT, or systemd for the sockets that systemd passes; addresses"
            " beyond loopback need certificate-file, and users-file or client-ca-file"
        ),
    ] = ("127.0.0.1:9500",)
    names: Annotated[
        tuple[NameSet, ...], Meta(description="sets of metric names: ccagent, or other exporters")
    ] = ("ccagent",)
    collectors: Annotated[
        tuple[str, ...], Meta(description="collectors to use; empty: the default collectors")
    ] = ()
    exclude: Annotated[tuple[str, ...], Meta(description="collectors to exclude")] = ()
    path: Annotated[str, Meta(description="path of the metrics in the URL")] = "/metrics"
    certificate_file: Annotated[
        str, Meta(description="server certificate with its chain, PEM; empty: no TLS")
    ] = ""
    key_file: Annotated[str, Meta(description="key of certificate-file, not encrypted")] = ""
    client_ca_file: Annotated[
        str,
        Meta(description="PEM of CAs; clients need a certificate of one of them; empty: no check"),
    ] = ""
    client_names: Annotated[
        tuple[str, ...],
        Meta(description="names or addresses; client certificates need one of them; empty: any"),
    ] = ()
    users_file: Annotated[
        str,
        Meta(
            description="file with lines NAME:HASH, written by `ccagent export password`;"
            " empty: no login"
        ),
    ] = ""
    insecure: Annotated[
        bool, Meta(description="listen beyond loopback without TLS or without a password")
    ] = False
    clients: Annotated[
        int,
        Meta(ge=1, le=1000, description="maximum of open connections; further connections wait"),
    ] = 40
    client_timeout: Annotated[
        Duration,
        Meta(description="time limit for a client to send a request and receive the response"),
    ] = Duration("10s")
    time_limit: Annotated[
        Duration, Meta(description="default time limit of a scrape; late collectors are omitted")
    ] = Duration("9500ms")
    min_interval: Annotated[
        Duration, Meta(description="a scrape this soon after another gets the same values")
    ] = Duration("200ms")
    max_jobs: Annotated[
        int,
        Meta(
            ge=0,
            description="maximum of jobs with series, further jobs are counted;"
            " 0: the hwthreads of the machine and 50 more",
        ),
    ] = 0
    max_lustre_jobs: Annotated[
        int, Meta(ge=0, description="maximum of job ids in Lustre's job_stats with series")
    ] = 2000
    job_info: Annotated[
        Literal["environment", "none"],
        Meta(
            description="source of a job's account, partition and name: the environment of its"
            " first process, or none"
        ),
    ] = "environment"
    gpu_job_directory: Annotated[
        str, Meta(description="directory for dcgm-exporter's --hpc-job-mapping-dir; empty: none")
    ] = ""
    gpu_vendors: Annotated[
        tuple[str, ...], Meta(description="vendors of the cards to read; empty: none")
    ] = ("nvidia", "amd")
    textfile_directory: Annotated[
        str, Meta(description="directory of files *.prom for the collector `textfile`; empty: none")
    ] = ""
    slow_every: Annotated[
        Duration, Meta(description="maximum age of the values of Slurm's programs")
    ] = Duration("30s")
    lctl: Annotated[str, Meta(description="the program lctl")] = "lctl"
    sinfo: Annotated[str, Meta(description="the program sinfo")] = "sinfo"
    scontrol: Annotated[str, Meta(description="the program scontrol")] = "scontrol"
    sdiag: Annotated[str, Meta(description="the program sdiag")] = "sdiag"
    sshare: Annotated[str, Meta(description="the program sshare")] = "sshare"
    squeue: Annotated[str, Meta(description="the program squeue")] = "squeue"
    systemctl: Annotated[str, Meta(description="the program systemctl")] = "systemctl"
    node_exporter: Annotated[
        NodeExporterSettings, Meta(description="exclusions in the set node_exporter")
    ] = NodeExporterSettings()

    def __post_init__(self) -> None:
        """Raise ValueError with all problems if a value is invalid."""
        problems = list(_find_problems(self))
        if problems:
            raise ValueError("; ".join(problems))

    def addresses(self) -> list[Address]:
        """Return the distinct configured addresses, without `systemd`."""
        return [parse_address(text) for text in dict.fromkeys(self.listen) if text != SYSTEMD]

    @property
    def most_jobs(self) -> int:
        """Return the maximum of jobs with series: without the key, what a node can run."""
        return self.max_jobs or (os.cpu_count() or 1) + _MORE_JOBS

    @property
    def is_protected(self) -> bool:
        """Return whether clients must authenticate, over TLS."""
        return bool(self.certificate_file and (self.users_file or self.client_ca_file))


def list_collectors(name_set: str) -> dict[str, bool]:
    """Return the collectors of a set of names, and whether each is used by default.

    The set `ccagent` has every reader of the agent `metrics`.
    """
    found = {name: name not in _ON_DEMAND for name in COLLECTORS[name_set]}
    if name_set == "ccagent":
        from ccagent.agents.metrics.settings import READERS

        found |= {name: reader.is_exposed for name, reader in READERS.items()}
    return found


def _find_problems(settings: ExporterSettings) -> Iterator[str]:
    yield from _find_wrong_addresses(settings)
    yield from _find_wrong_files(settings)
    yield from _find_wrong_names(settings)
    if not _PATH.fullmatch(settings.path) or _FORBIDDEN.intersection(settings.path):
        yield (
            f"path: {settings.path!r}: expected '/' and a name, such as /metrics; no spaces,"
            " no '?', '#' or '%'"
        )
    if not 0.5 <= settings.time_limit.seconds <= 600:
        yield "time-limit: from 500ms to 10m"
    if not 1 <= settings.client_timeout.seconds <= 600:
        yield "client-timeout: from 1s to 10m"
    if settings.min_interval.seconds > 60:
        yield "min-interval: 60s at most"


def _find_wrong_addresses(settings: ExporterSettings) -> Iterator[str]:
    for text in settings.listen:
        if text == SYSTEMD:
            continue
        try:
            address = parse_address(text)
        except ValueError as error:
            yield f"listen: {error}"
            continue
        if not (address.is_loopback or settings.is_protected or settings.insecure):
            yield (
                f"listen: {text!r} is open to the network: set certificate-file and users-file or"
                " client-ca-file, or insecure = true"
            )


def _find_wrong_files(settings: ExporterSettings) -> Iterator[str]:
    if bool(settings.certificate_file) != bool(settings.key_file):
        yield "certificate-file, key-file: both or none"
    if settings.client_ca_file and not settings.certificate_file:
        yield "client-ca-file: needs certificate-file"
    if settings.client_names and not settings.client_ca_file:
        yield "client-names: needs client-ca-file"
    for key, path in (
        ("certificate-file", settings.certificate_file),
        ("client-ca-file", settings.client_ca_file),
        ("gpu-job-directory", settings.gpu_job_directory),
        ("textfile-directory", settings.textfile_directory),
    ):
        if path and not path.startswith("/"):
            yield f"{key}: expected an absolute path"
    for key, place in (("key-file", settings.key_file), ("users-file", settings.users_file)):
        if place and not place.startswith(("/", "credential:")):
            yield f"{key}: expected an absolute path or credential:NAME"


def _find_wrong_names(settings: ExporterSettings) -> Iterator[str]:
    from ccagent.machine.gpu.vendor import vendor_directories

    if not settings.names:
        yield f"names: is empty{nearest('', [*NAME_SETS])}"
    if {"cgroup_exporter", "jobstats"} <= {*settings.names}:
        yield "names: cgroup_exporter and jobstats have the same names with other labels"
    if settings.collectors or settings.exclude:
        yield from _find_wrong_collectors(settings)
    for vendor in settings.gpu_vendors:
        try:
            vendor_directories(vendor)
        except CcagentError as error:
            yield f"gpu-vendors: {error}"


def _find_wrong_collectors(settings: ExporterSettings) -> Iterator[str]:
    homes: dict[str, list[str]] = {}
    for name_set in NAME_SETS:
        for name in list_collectors(name_set):
            homes.setdefault(name, []).append(name_set)
    for key, names in (("collectors", settings.collectors), ("exclude", settings.exclude)):
        for name in names:
            if name not in homes:
                yield f"{key}: {name!r} is unknown{nearest(name, [*homes])}"
    for name in settings.collectors:
        own = homes.get(name, settings.names)
        if settings.names and not set(own).intersection(settings.names):
            yield f"collectors: {name!r} needs {' or '.join(own)} in names"
