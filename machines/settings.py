"""The table [migfra]: its keys and their checks, and the setup of the service from a file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from ccagent.agents.fast import settings as fast
from ccagent.config import common_keys
from ccagent.config.configuration import ServiceSetup, load_service
from ccagent.config.duration import Duration, parse_size
from ccagent.config.settings import Settings
from ccagent.errors import ConfigurationError, KeyProblem, UnparsableError
from ccagent.machine.procfs.system import parse_cpu_list
from ccagent.net.signatures import missing_library

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.transports.mqtt import MqttSettings

STATE_DIRECTORY = "/var/lib/ccagent-migfra"

TaskName = Literal[
    "start vm", "stop vm", "suspend vm", "resume vm", "repin vm", "migrate vm", "evacuate node"
]
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?", re.ASCII)


def _find_problems(allow: AllowMachines) -> Iterator[str]:
    for pattern in allow.machines:
        try:
            re.compile(pattern)
        except re.error as error:
            yield f"allow.machines: {pattern!r}: {error}"
    for name, uri in allow.destinations.items():
        if not _HOST.fullmatch(name):
            yield f"allow.destinations: {name!r}: the name of a host is needed"
        if "://" not in uri:
            yield f"allow.destinations.{name}: a URI such as qemu+tls://{name}/system is needed"
    if not (allow.templates.startswith("/") and (allow.images or "/").startswith("/")):
        yield "allow.templates, allow.images: an absolute path is needed"
    try:
        parse_size(allow.max_memory)
    except ValueError as error:
        yield f"allow.max-memory: {error}"
    try:
        if allow.cpus:
            parse_cpu_list(allow.cpus.encode())
    except UnparsableError as error:
        yield f"allow.cpus: {error}"


class AllowMachines(Settings, frozen=True, kw_only=True):
    """The keys of the table [migfra.allow]: nothing is allowed unless it is named."""

    tasks: Annotated[tuple[TaskName, ...], Meta(description="tasks that are accepted")] = ()
    machines: Annotated[
        tuple[str, ...],
        Meta(description="regular expressions for whole names of machines; others don't exist"),
    ] = ()
    destinations: Annotated[
        dict[str, str], Meta(description="libvirt URI of each destination, by its name")
    ] = {}
    migrate_uris: Annotated[
        dict[str, str],
        Meta(description="URI for QEMU's data by destination, such as tcp://10.1.1.2"),
    ] = {}
    cpus: Annotated[str, Meta(description="CPUs for vcpu-map, such as 2-63; empty: none")] = ""
    xml: Annotated[
        Literal["refuse", "templates", "checked"],
        Meta(
            description="'templates': machines may be started from files in `templates`; 'checked':"
            " also by XML of harmless elements"
        ),
    ] = "refuse"
    images: Annotated[
        str, Meta(description="directory of disks and kernels that XML may name; empty: none")
    ] = ""
    networks: Annotated[
        tuple[str, ...], Meta(description="networks of libvirt that XML may name")
    ] = ()
    pci_ids: Annotated[
        tuple[Annotated[str, Meta(pattern="^[0-9a-f]{4}:[0-9a-f]{4}$")], ...],
        Meta(description="PCI devices of the host that machines may have, such as 15b3:1004"),
    ] = ()
    signed_by: Annotated[
        tuple[Annotated[str, Meta(pattern="^U[A-Z2-7]{55}$")], ...],
        Meta(description="public nkeys of schedulers; not empty: tasks must be signed by one"),
    ] = ()
    templates: Annotated[str, Meta(description="directory of templates, NAME.xml")] = (
        "/etc/ccagent/machines"
    )
    force: Annotated[bool, Meta(description="allow stop with force: without a shutdown")] = False
    undefine: Annotated[bool, Meta(description="allow stop with undefine")] = False
    max_memory: Annotated[str, Meta(description="memory of a machine, at most; units K M G T")] = (
        "64G"
    )
    max_vcpus: Annotated[int, Meta(ge=1, description="virtual CPUs of a machine, at most")] = 256
    parallel: Annotated[
        int, Meta(ge=1, le=64, description="migrations at the same time; others wait")
    ] = 2
    retries: Annotated[int, Meta(ge=0, le=100, description="retry-counter, at most")] = 3
    migration_limit: Annotated[
        Duration, Meta(description="time after which a migration is aborted")
    ] = Duration("10m")
    bandwidth: Annotated[
        int, Meta(ge=0, description="MiB/s of a migration; 0: libvirt's default")
    ] = 0

    def __post_init__(self) -> None:
        """Raise ValueError with all problems of the keys."""
        problems = [*_find_problems(self)]
        if problems:
            raise ValueError("; ".join(problems))

    @property
    def most_memory(self) -> int:
        """Maximum memory of a machine in KiB."""
        return parse_size(self.max_memory) // 1024

    @property
    def allowed_cpus(self) -> frozenset[int]:
        """CPUs of a `vcpu-map`."""
        return frozenset(parse_cpu_list(self.cpus.encode())) if self.cpus else frozenset()


class MigfraSettings(Settings, frozen=True, kw_only=True):
    """The keys of the table [migfra]."""

    url: Annotated[str, Meta(description="broker: mqtt://, mqtts://, ws:// or wss://")] = ""
    topic: Annotated[str, Meta(description="root of the topic tree")] = "fast"
    client_id: fast.ClientId = "ccagent-migfra-{node}"
    protocol: Annotated[Literal["3.1.1", "5"], Meta(description="version of MQTT")] = "5"
    user: Annotated[str, Meta(description="user name for the password")] = ""
    password_file: Annotated[str, Meta(description="file with the password of that user")] = ""
    ca_file: common_keys.CaFile = ""
    certificate_file: common_keys.CertificateFile = ""
    key_file: common_keys.KeyFile = ""
    insecure: common_keys.Insecure = False
    allow_cleartext: common_keys.AllowCleartext = False
    answer_limit: fast.AnswerLimit = Duration("10s")
    state_directory: Annotated[
        str, Meta(description="directory of tasks, queued results and the audit")
    ] = STATE_DIRECTORY
    hypervisor: Annotated[str, Meta(description="URI of this node's libvirt")] = "qemu:///system"
    run_directory: fast.RunDirectory = "/run/libvirt/qemu"
    peer_to_peer: Annotated[
        bool,
        Meta(
            description="let libvirt's daemons migrate without this service; false: for"
            " destinations that this node's daemon can't reach itself, such as local sockets"
        ),
    ] = True
    spare_jobs: Annotated[
        bool, Meta(description="refuse a vcpu-map with CPUs of a Slurm job of other machines")
    ] = True
    migration_tls: Annotated[bool, Meta(description="encrypt QEMU's migration data")] = False
    start_limit: Annotated[
        Duration, Meta(description="time until a started machine must be ready")
    ] = Duration("60s")
    stop_limit: Annotated[
        Duration, Meta(description="time until a machine that is shut down must be off")
    ] = Duration("60s")
    settle_limit: Annotated[
        Duration,
        Meta(description="time to wait for libvirt after a failure, to find where a machine runs"),
    ] = Duration("30s")
    ready: Annotated[
        Literal["ssh", "running"],
        Meta(description="a started machine is ready when its ssh answers, or when it runs"),
    ] = "ssh"
    ready_port: Annotated[int, Meta(ge=1, le=65535, description="port of ssh")] = 22
    destroy_unready: Annotated[
        bool, Meta(description="destroy a started machine that is not ready in time")
    ] = False
    pscom_form: Annotated[
        Literal["word", "map"],
        Meta(description="requests to pscom: a bare word as old programs read it, or a YAML map"),
    ] = "map"
    pscom_limit: Annotated[
        Duration, Meta(description="time until all processes must have answered")
    ] = Duration("10s")
    allow: Annotated[AllowMachines, Meta(description="what schedulers may do")] = AllowMachines()

    def __post_init__(self) -> None:
        """Raise ValueError with all problems of the keys."""
        for path in (self.state_directory, self.run_directory):
            if not path.startswith("/"):
                raise ValueError(f"state-directory, run-directory: {path!r} is no absolute path")

    def broker(self) -> MqttSettings:
        """Return the keys of the broker as settings of an MQTT sink, checked like them."""
        return fast.make_broker(self, self.answer_limit)


def check_migfra(settings: MigfraSettings) -> None:
    """Check broker and libraries. Raise ConfigurationError if one is unusable or missing."""
    from importlib.util import find_spec

    if not settings.url:
        return
    problems = fast.find_session_problems(settings.broker(), "migfra")
    if find_spec("libvirt") is None:
        problems.append(
            "migfra: the library libvirt-python is missing: apt-get install python3-libvirt, or"
            " pip install libvirt-python (needs gcc, pkg-config and libvirt's headers)"
        )
    if settings.allow.signed_by:
        problems += missing_library("migfra.allow.signed-by")
    if problems:
        raise ConfigurationError(*problems)


MigfraSetup = ServiceSetup[MigfraSettings]


def load_setup(path: str | None) -> MigfraSetup:
    """Read and check the file; without `path` the default file. Raise ConfigurationError."""
    setup = load_service(path, "migfra", MigfraSettings, check_migfra)
    if not setup.settings.url:
        raise ConfigurationError(KeyProblem(setup.path, "migfra.url", "missing"))
    return setup
