"""The keys of [agents.fast], and their checks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from ccagent.agents.base import AgentSettings
from ccagent.config import common_keys
from ccagent.config.duration import Cadence, Duration
from ccagent.config.settings import Problems
from ccagent.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.transports.mqtt import MqttSettings

_LIBRARIES = {"yaml": "PyYAML", "numpy": "numpy"}
"""Libraries of the extra `fast`, by the module that they provide."""

_FASTEST = 10.0
_BROKER_KEYS = (
    "url", "protocol", "topic", "client_id", "user", "password_file", "ca_file",
    "certificate_file", "key_file", "insecure", "allow_cleartext",
)  # fmt: skip

_LONGEST = 1000
"""Maximum length of topics."""
_UNUSABLE = re.compile(r"[+#\0{}]")
_FILTER = re.compile(r"(?:[^+#\0{}/]*|\+)(?:/(?:[^+#\0{}/]*|\+))*(?:/#)?")

ClientId = Annotated[str, Meta(description="client id, unique among all clients of the broker")]
AnswerLimit = Annotated[
    Duration, Meta(description="time limit for connecting and for each answer of the broker")
]
RunDirectory = Annotated[str, Meta(description="libvirt's directory of NAME.pid")]


class FastSettings(AgentSettings, frozen=True, kw_only=True):
    """The keys of [agents.fast]."""

    every: Annotated[
        Cadence | None,
        Meta(description="interval of KPIs to the sinks as points, independent of the scheduler"),
    ] = Cadence("60s")
    url: Annotated[
        str, Meta(description="broker: mqtt://, mqtts://, ws:// or wss://; empty: no scheduler")
    ] = ""
    topic: Annotated[str, Meta(description="root of the topic tree")] = "fast"
    client_id: ClientId = "ccagent-fast-{node}"
    protocol: Annotated[Literal["3.1.1", "5"], Meta(description="version of MQTT")] = "5"
    user: Annotated[str, Meta(description="user name for the password")] = ""
    password_file: Annotated[str, Meta(description="file with the password of that user")] = ""
    ca_file: common_keys.CaFile = ""
    certificate_file: common_keys.CertificateFile = ""
    key_file: common_keys.KeyFile = ""
    insecure: common_keys.Insecure = False
    allow_cleartext: common_keys.AllowCleartext = False
    answer_limit: AnswerLimit = Duration("10s")
    state_directory: Annotated[
        str,
        Meta(
            description="directory of the accepted configuration, queued answers and the bandwidth"
            " reference; empty: in memory, lost with the process"
        ),
    ] = ""
    accept_from: Annotated[
        list[str],
        Meta(
            description="topics of accepted tasks, with {topic} and {node};"
            " empty: {topic}/agent/{node}/task/#"
        ),
    ] = []
    max_rate: Annotated[
        float,
        Meta(
            gt=0,
            le=_FASTEST,
            description="maximum KPI rounds and bandwidth measurements per second that a scheduler"
            " may request",
        ),
    ] = 1.0
    mmbwmon: Annotated[
        bool, Meta(description="allow bandwidth measurements on cores without a job")
    ] = False
    mmbwmon_failed: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="number in the response to a failed measurement, for schedulers that can't"
            " read a response without one; 0: no number",
        ),
    ] = 0.0
    jobs: Annotated[bool, Meta(description="monitor Slurm jobs on this node")] = True
    machines: Annotated[
        Literal["all", "libvirt", "none"],
        Meta(
            description="virtual machines of QEMU to monitor; 'libvirt': those with a pid file in"
            " run-directory"
        ),
    ] = "all"
    run_directory: RunDirectory = "/run/libvirt/qemu"
    relay: Annotated[
        Literal["jobs", "all", "none"],
        Meta(
            description="applications with KPIs to relay as points: jobs on this node, all, or none"
        ),
    ] = "jobs"
    communication_medium: Annotated[
        int, Meta(ge=1, description="B/s of the interconnect for medium communication intensity")
    ] = 10_000_000
    communication_high: Annotated[
        int, Meta(ge=1, description="B/s of the interconnect for high communication intensity")
    ] = 1_000_000_000
    compute_medium: Annotated[
        float,
        Meta(gt=0, le=100, description="CPU usage of the node, %, for medium compute intensity"),
    ] = 30.0
    compute_high: Annotated[
        float,
        Meta(gt=0, le=100, description="CPU usage of the node, %, for high compute intensity"),
    ] = 70.0
    io_medium: Annotated[
        int, Meta(ge=1, description="B/s of local disks and NFS for medium IO intensity")
    ] = 10_000_000
    io_high: Annotated[
        int, Meta(ge=1, description="B/s of local disks and NFS for high IO intensity")
    ] = 200_000_000
    energy_medium: Annotated[
        float,
        Meta(gt=0, description="W of all CPUs and their memory for medium energy consumption"),
    ] = 150.0
    energy_high: Annotated[
        float, Meta(gt=0, description="W of all CPUs and their memory for high energy consumption")
    ] = 350.0
    runtime_medium: Annotated[
        Duration, Meta(description="run time so far for a medium expected runtime")
    ] = Duration("10m")
    runtime_high: Annotated[
        Duration, Meta(description="run time so far for a high expected runtime")
    ] = Duration("2h")

    def broker(self) -> MqttSettings:
        """Return the keys of the broker as settings of an MQTT sink, checked like them."""
        return make_broker(self, self.answer_limit)


def make_broker(settings: object, answer_limit: Duration) -> MqttSettings:
    """Return the keys of a broker in a table as settings of an MQTT sink."""
    from ccagent.transports.mqtt import MqttSettings

    keys: dict[str, Any] = {name: getattr(settings, name) for name in _BROKER_KEYS}
    return MqttSettings(status_topic="", time_limit=answer_limit, **keys)


def check_settings(settings: FastSettings) -> None:
    """Check the settings. Raise ConfigurationError with the invalid keys."""
    problems: list[str] = []
    if settings.state_directory and not settings.state_directory.startswith("/"):
        problems.append("agents.fast.state-directory: an absolute path is needed")
    for name, medium, high in (
        ("communication", settings.communication_medium, settings.communication_high),
        ("compute", settings.compute_medium, settings.compute_high),
        ("io", settings.io_medium, settings.io_high),
        ("energy", settings.energy_medium, settings.energy_high),
        ("runtime", settings.runtime_medium.seconds, settings.runtime_high.seconds),
    ):
        if high < medium:
            problems.append(f"agents.fast.{name}-high: less than {name}-medium")
    try:
        if settings.url:
            problems += find_session_problems(settings.broker(), "agents.fast")
            check_filters(settings.accept_from)
        elif settings.accept_from or settings.user or settings.ca_file:
            problems.append("agents.fast.url: missing; set the URL of the broker")
        if settings.mmbwmon:
            check_extra("numpy", "agents.fast.mmbwmon")
    except ConfigurationError as error:
        problems += error.problems
    if problems:
        raise ConfigurationError(*problems)


def check_extra(module: str, key: str) -> None:
    """Raise ConfigurationError if a library of the extra `fast` is missing."""
    from importlib.util import find_spec

    if find_spec(module) is None:
        from ccagent.machine.interpreter import install_command

        library = _LIBRARIES[module]
        raise ConfigurationError(
            f"{key}: the Python library {library} is missing: {install_command(library)}"
        )


def find_session_problems(broker: MqttSettings, table: str) -> list[str]:
    """Return the problems of broker, topic and library for a session of a table."""
    from ccagent.net.mqtt_broker import PORTS
    from ccagent.transports.mqtt import check_settings as check_broker

    problems = Problems("")
    if broker.url.partition("://")[0] not in PORTS:
        problems.found.append(f"{table}.url: expected {'://, '.join(PORTS)}://")
    else:
        try:
            check_broker(broker)
        except ConfigurationError as error:
            names = (problem.replace("time-limit:", "answer-limit:") for problem in error.problems)
            problems.found += [f"{table}.{name}" for name in names]
    problems.attempt(check_root, broker.topic, table)
    problems.attempt(check_extra, "yaml", f"{table}.url")
    return problems.found


def check_root(root: str, table: str) -> None:
    """Raise ConfigurationError for an invalid root of the topic tree in a table."""
    if not root or _UNUSABLE.search(root) or len(root.encode()) > _LONGEST or root[0] in "/$":
        raise ConfigurationError(
            f"{table}.topic: one or more levels such as 'fast', without + # {{ }}"
        )


def check_filters(filters: Sequence[str]) -> None:
    """Raise ConfigurationError for an invalid topic filter among them."""
    for text in filters:
        plain = text.replace("{topic}", "t").replace("{node}", "n")
        is_valid = _FILTER.fullmatch(plain) and len(plain) <= _LONGEST and "{node}" in text
        if not plain or plain[0] in "+#$" or not is_valid:
            raise ConfigurationError(
                f"agents.fast.accept-from: {text[:80]!r}: a filter such as"
                " '{topic}/agent/{node}/task/#', with {node}, and with + and # for whole levels"
            )
