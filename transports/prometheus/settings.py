"""The keys of the table [exporter], and what they must not be."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from msgspec import Meta

from ccagent.config.duration import Duration
from ccagent.config.settings import Settings, nearest
from ccagent.errors import CcagentError

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME_SETS = (
    "ccagent", "node_exporter", "cgroup_exporter", "dcgm", "lustre", "ceems", "slurm",
)  # fmt: skip
"""Sets of names that may be exposed."""

SYSTEMD = "systemd"
"""In `listen`: the sockets that systemd passes."""

NameSet = Literal["ccagent", "node_exporter", "cgroup_exporter", "dcgm", "lustre", "ceems", "slurm"]


_PATH = re.compile(r"/[!-~]+")
_FORBIDDEN = frozenset("?#%")


class Address(NamedTuple):
    """Where to listen."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine can connect."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Return whether an address of a socket can be reached from this machine alone."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


def parse_address(text: str) -> Address:
    """Parse `127.0.0.1:9500`, `[::1]:9500`, `:9500` (all addresses). Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: an IPv6 address stands in brackets: [::1]:9500")
    if not colon or not re.fullmatch("[0-9]{1,5}", port) or not 0 <= int(port) <= 65535:
        raise ValueError(f"{text!r}: expected ADDRESS:PORT, such as 127.0.0.1:9500")
    if host not in {"", "localhost"}:
        try:
            ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            raise ValueError(f"{text!r}: {host!r} is no IP address") from None
    return Address(host, int(port))


class NodeExporterSettings(Settings, frozen=True, kw_only=True):
    """The keys of [exporter.node-exporter]: regular expressions, as flags of node_exporter."""

    disk_exclude: Annotated[
        str, Meta(description="devices without node_disk_*; a regular expression")
    ] = r"^(ram|loop|fd|(h|s|v|xv)d[a-z]|nvme\d+n\d+p)\d+$"
    filesystem_exclude: Annotated[
        str, Meta(description="mount points without node_filesystem_*; a regular expression")
    ] = r"^/(dev|proc|run|sys|mnt|media|var/lib/docker/.+|var/lib/containers/storage/.+)($|/)"
    filesystem_types_exclude: Annotated[
        str, Meta(description="types of file systems likewise; a regular expression")
    ] = (
        r"^(autofs|binfmt_misc|bpf|cgroup2?|configfs|debugfs|devpts|devtmpfs|fusectl|hugetlbfs"
        r"|iso9660|mqueue|nsfs|overlay|proc|procfs|pstore|rpc_pipefs|securityfs|selinuxfs|squashfs"
        r"|sysfs|tracefs)$"
    )
    network_exclude: Annotated[
        str, Meta(description="interfaces without counters of traffic; a regular expression")
    ] = r"^lo$"

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            try:
                re.compile(getattr(self, name))
            except re.error as error:
                key = name.replace("_", "-")
                raise ValueError(f"{key}: no regular expression: {error}") from None


class ExporterSettings(Settings, frozen=True, kw_only=True):
    """The keys of the table [exporter]."""

    listen: Annotated[
        tuple[str, ...],
        Meta(
            description="ADDRESS:PORT, or systemd for the sockets that it passes; others than"
            " loopback need certificate-file, and users-file or client-ca-file"
        ),
    ] = ("127.0.0.1:9500",)
    names: Annotated[
        tuple[NameSet, ...], Meta(description="sets of names: those of other exporters, or our own")
    ] = ("ccagent",)
    collectors: Annotated[
        tuple[str, ...], Meta(description="collectors to use; empty: the default ones")
    ] = ()
    exclude: Annotated[tuple[str, ...], Meta(description="collectors not to use")] = ()
    path: Annotated[str, Meta(description="path of the metrics in the URL")] = "/metrics"
    certificate_file: Annotated[
        str, Meta(description="our certificate with its chain, PEM; empty: no TLS")
    ] = ""
    key_file: Annotated[str, Meta(description="the key of that certificate, not encrypted")] = ""
    client_ca_file: Annotated[
        str, Meta(description="clients need a certificate of one of these; empty: none")
    ] = ""
    client_names: Annotated[
        tuple[str, ...],
        Meta(description="names or addresses of which a client's certificate has one; empty: any"),
    ] = ()
    users_file: Annotated[
        str,
        Meta(
            description="file with lines NAME:HASH, made by `ccagent export password`; empty:"
            " everybody may ask"
        ),
    ] = ""
    insecure: Annotated[
        bool, Meta(description="listen beyond loopback without TLS or without a password")
    ] = False
    clients: Annotated[
        int,
        Meta(ge=1, le=1000, description="connections at a time; further ones wait"),
    ] = 40
    client_timeout: Annotated[
        Duration, Meta(description="within which a client must send a request and take the answer")
    ] = Duration("10s")
    time_limit: Annotated[
        Duration,
        Meta(description="of a scrape, if the client names none; late collectors are left out"),
    ] = Duration("9500ms")
    min_interval: Annotated[
        Duration, Meta(description="a scrape this soon after another gets the same values")
    ] = Duration("200ms")
    max_jobs: Annotated[
        int, Meta(ge=0, description="jobs with series of their own; further ones are counted")
    ] = 200
    max_lustre_jobs: Annotated[
        int, Meta(ge=0, description="job ids of Lustre's job_stats with series of their own")
    ] = 2000
    job_info: Annotated[
        Literal["environment", "none"],
        Meta(
            description="where account, partition and name of a job come from: the environment of"
            " its first process, or nowhere"
        ),
    ] = "environment"
    gpu_job_directory: Annotated[
        str,
        Meta(description="write files for dcgm-exporter's --hpc-job-mapping-dir here; empty: none"),
    ] = ""
    gpu_vendors: Annotated[
        tuple[str, ...], Meta(description="vendors whose cards are read; empty: none")
    ] = ("nvidia", "amd")
    textfile_directory: Annotated[
        str,
        Meta(
            description="families of the files *.prom in it are exposed by `textfile`; empty: none"
        ),
    ] = ""
    slow_every: Annotated[
        Duration, Meta(description="how old values of slow sources may be: Slurm's programs, lctl")
    ] = Duration("30s")
    lctl: Annotated[str, Meta(description="the program lctl")] = "lctl"
    sinfo: Annotated[str, Meta(description="the program sinfo")] = "sinfo"
    squeue: Annotated[str, Meta(description="the program squeue")] = "squeue"
    node_exporter: Annotated[
        NodeExporterSettings, Meta(description="what the names of node_exporter leave out")
    ] = NodeExporterSettings()

    def __post_init__(self) -> None:
        """Refuse what can't work, all at once. Raises ValueError."""
        problems = list(_find_problems(self))
        if problems:
            raise ValueError("; ".join(problems))

    def addresses(self) -> list[Address]:
        """Return the addresses to listen at, but for the sockets of systemd."""
        return [parse_address(text) for text in dict.fromkeys(self.listen) if text != SYSTEMD]

    @property
    def is_protected(self) -> bool:
        """Return whether a client proves who it is, over TLS."""
        return bool(self.certificate_file and (self.users_file or self.client_ca_file))


def _find_problems(settings: ExporterSettings) -> Iterator[str]:
    yield from _find_wrong_addresses(settings)
    yield from _find_wrong_files(settings)
    yield from _find_wrong_names(settings)
    if not _PATH.fullmatch(settings.path) or _FORBIDDEN.intersection(settings.path):
        yield (
            f"path: {settings.path!r}: begins with '/' and has more, such as /metrics; no spaces,"
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
            yield f"{key}: an absolute path is needed"
    for key, place in (("key-file", settings.key_file), ("users-file", settings.users_file)):
        if place and not place.startswith(("/", "credential:")):
            yield f"{key}: an absolute path is needed, or credential:NAME"


def _find_wrong_names(settings: ExporterSettings) -> Iterator[str]:
    from ccagent.machine.gpu.presence import vendor_directories
    from ccagent.transports.prometheus.collector_names import COLLECTORS, collector_names

    if not settings.names:
        yield f"names: at least one is needed{nearest('', [*NAME_SETS])}"
    known = collector_names()
    for key, names in (("collectors", settings.collectors), ("exclude", settings.exclude)):
        for name in names:
            if name not in known:
                yield f"{key}: {name!r} is unknown{nearest(name, known)}"
    for name in settings.collectors:
        homes = [each for each, inner in COLLECTORS.items() if name in inner]
        if homes and settings.names and not set(homes).intersection(settings.names):
            yield f"collectors: {name!r} belongs to {' and '.join(homes)}, which names lacks"
    for vendor in settings.gpu_vendors:
        try:
            vendor_directories(vendor)
        except CcagentError as error:
            yield f"gpu-vendors: {error}"
