"""The table [controls]: its keys and their checks, and the setup of the service from a file.

Agents and sinks in the file are ignored, so their modules are not loaded.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from ccagent.config import common_keys
from ccagent.config.configuration import ServiceSetup, load_service
from ccagent.config.duration import Cadence, Duration
from ccagent.config.files import DEFAULT_PATH
from ccagent.config.settings import Settings
from ccagent.controls.control import DEVICE_TYPES
from ccagent.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ccagent.controls.control import ControlClass


STATE_DIRECTORY = "/var/lib/ccagent-control"
SOCKET = "/run/ccagent-control/control.sock"
OVERRIDES = "/run/ccagent-control/overrides.toml"

_NAME = re.compile(r"[a-z0-9_]+(?:\.[A-Za-z0-9_-]+)+", re.ASCII)
_SUBJECT = re.compile(r"[\w!#$%&'+,/:;=?@^`|~-]+(?:\.[\w!#$%&'+,/:;=?@^`|~-]+)*", re.ASCII)
CONFIG_KEY = re.compile(r"config\.agents\.([a-z][a-z0-9_-]{0,63})(\.every)?", re.ASCII)
_KEY = re.compile(r"U[A-Z2-7]{55}", re.ASCII)
_LONGEST_LEASE = 365 * 86400.0

_FROM = (
    "permitted senders: account:NAME and user:NAME as reported by the NATS server, key:U... for"
    " signed requests; empty: "
)


class AllowSettings(Settings, frozen=True, kw_only=True):
    """The keys of a table [controls.allow."CATEGORY.NAME"]."""

    values: Annotated[list[str], Meta(description="values that may be set; empty: see min")] = []
    min: Annotated[float | None, Meta(description="minimum value, in the unit of the control")] = (
        None
    )
    max: Annotated[float | None, Meta(description="maximum value, in the unit of the control")] = (
        None
    )
    device_types: Annotated[
        list[str], Meta(description="types of devices, such as 'socket'; empty: all")
    ] = []
    lease: Annotated[
        Duration | None,
        Meta(description="time until the old value is restored, unless the control is set again"),
    ] = None
    senders: Annotated[tuple[str, ...], Meta(description=_FROM + "those of [controls]")] = (
        msgspec.field(name="from", default=())
    )


class ControlsSettings(Settings, frozen=True, kw_only=True):
    """The keys of the table [controls]."""

    url: Annotated[
        str, Meta(description="NATS server, nats:// or tls://; empty: this node's commands only")
    ] = ""
    subjects: Annotated[
        tuple[str, ...],
        Meta(description="subjects of requests; a suffix .get or .put permits only this method"),
    ] = ("cc-control",)
    user: Annotated[str, Meta(description="user of the password")] = ""
    password_file: Annotated[str, Meta(description="file with the password")] = ""
    token_file: Annotated[str, Meta(description="file with a token")] = ""
    nkey_file: Annotated[str, Meta(description="file with the seed of a user's nkey")] = ""
    creds_file: Annotated[str, Meta(description="file with a user's JWT and seed (.creds)")] = ""
    ca_file: common_keys.CaFile = ""
    certificate_file: common_keys.CertificateFile = ""
    key_file: common_keys.KeyFile = ""
    insecure: common_keys.Insecure = False
    allow_cleartext: common_keys.AllowCleartext = False
    get: Annotated[bool, Meta(description="answer GET")] = True
    allow: Annotated[
        dict[str, AllowSettings], Meta(description="controls that may be set, by name")
    ] = {}
    senders: Annotated[
        tuple[str, ...], Meta(description=_FROM + "all users that may publish to the subjects")
    ] = msgspec.field(name="from", default=())
    trust_request_info: Annotated[
        bool,
        Meta(
            description="believe the header Nats-Request-Info; safe only where senders are in"
            " other accounts than this node"
        ),
    ] = False
    puts_per_minute: Annotated[
        int, Meta(ge=1, description="maximum number of PUT requests per minute, of each sender")
    ] = 600
    dry_run: Annotated[bool, Meta(description="check and record PUT requests, write nothing")] = (
        False
    )
    owner_only: Annotated[
        bool,
        Meta(description="accept PUT only while exactly one Slurm job is on the node"),
    ] = False
    time_limit: Annotated[
        Duration, Meta(description="for reading or writing a control; the client waits 1 s")
    ] = Duration("800ms")
    spread: Annotated[
        Duration, Meta(description="random delay of answers to requests without hostname")
    ] = Duration("500ms")
    audit_subject: Annotated[
        str, Meta(description="subject of an event message for each change; empty: none")
    ] = ""
    state_directory: Annotated[str, Meta(description="directory of old values and the audit")] = (
        STATE_DIRECTORY
    )
    socket: Annotated[str, Meta(description="socket for this node's commands")] = SOCKET
    overrides: Annotated[
        str, Meta(description="file of the keys that `config` controls set; the daemon reads it")
    ] = OVERRIDES

    def __post_init__(self) -> None:
        """Raise ValueError with all problems of the keys."""
        problems = list(_find_problems(self))
        if problems:
            raise ValueError("; ".join(problems))


def _find_problems(settings: ControlsSettings) -> Iterator[str]:
    for subject in [*settings.subjects, *filter(None, (settings.audit_subject,))]:
        if not _SUBJECT.fullmatch(subject):
            yield f"subjects: {subject!r}: tokens with dots between them, no wildcards, no spaces"
    if settings.url and not settings.subjects:
        yield "subjects: at least one is needed"
    for key, path in (
        ("state-directory", settings.state_directory),
        ("socket", settings.socket),
        ("overrides", settings.overrides),
    ):
        if not path.startswith("/"):
            yield f"{key}: an absolute path is needed"
    if not 0 < settings.time_limit.seconds <= 60:
        yield "time-limit: from 1ms to 60s"
    if settings.spread.seconds > 60:
        yield "spread: 60s at most"
    yield from _find_wrong_senders("from", settings.senders, settings)
    for name, rule in settings.allow.items():
        yield from _find_wrong_rule(name, rule, settings)


def _find_wrong_rule(name: str, rule: AllowSettings, settings: ControlsSettings) -> Iterator[str]:
    where = f'allow."{name}"'
    if not _NAME.fullmatch(name):
        yield f"{where}: the name of a control is needed, CATEGORY.NAME; no wildcards"
    for kind in rule.device_types:
        if kind not in DEVICE_TYPES:
            yield f"{where}.device-types: {kind!r} is none of {', '.join(DEVICE_TYPES)}"
    for key, bound in (("min", rule.min), ("max", rule.max)):
        if bound is not None and not abs(bound) < 1e15:
            yield f"{where}.{key}: a finite number is needed"
    if rule.min is not None and rule.max is not None and rule.min > rule.max:
        yield f"{where}: min is greater than max"
    if rule.lease is not None and not 1 <= rule.lease.seconds <= _LONGEST_LEASE:
        yield f"{where}.lease: from 1s to 365d"
    yield from _find_wrong_senders(f"{where}.from", rule.senders, settings)


def _find_wrong_senders(
    where: str, senders: tuple[str, ...], settings: ControlsSettings
) -> Iterator[str]:
    for sender in senders:
        kind, _, name = sender.partition(":")
        if kind not in {"account", "user", "key"} or not name:
            yield f"{where}: {sender!r}: account:NAME, user:NAME or key:U... is expected"
        elif kind == "key" and not _KEY.fullmatch(name):
            yield f"{where}: {sender!r}: the public nkey of a user is needed (U...)"
        elif kind != "key" and not settings.trust_request_info:
            yield (
                f"{where}: {sender!r}: needs trust-request-info = true: the header can be forged by"
                " all in this node's own account"
            )


def all_senders(settings: ControlsSettings) -> list[str]:
    """Return the senders in all rules."""
    return [*settings.senders, *(s for rule in settings.allow.values() for s in rule.senders)]


CONFIG = "config."


def _find_wrong_key(name: str, rule: AllowSettings) -> Iterator[str]:
    """Yield the problems of a rule for a key of the configuration."""
    match = CONFIG_KEY.fullmatch(name)
    if match is None:
        yield "of the configuration only config.agents.NAME and config.agents.NAME.every can be set"
        return
    if rule.min is not None or rule.max is not None:
        yield "min and max are for numbers: list values"
    if match[2]:
        if not rule.values:
            yield 'values are needed, such as ["10s", "1m"]'
        for value in rule.values:
            try:
                Cadence(value)
            except ValueError as error:
                yield str(error)


def standard_classes() -> list[ControlClass]:
    """Return all classes that need only the machine."""
    from ccagent.controls.cards import AmdGpu, NvmlControls
    from ccagent.controls.kernel_files import CpuFreq, OsSettings, UncoreFreq
    from ccagent.controls.processors import Hsmp, Msr, Rapl

    return [CpuFreq(), Rapl(), UncoreFreq(), Msr(), OsSettings(), NvmlControls(), AmdGpu(), Hsmp()]


def find_unknown_rules(rules: Mapping[str, AllowSettings]) -> Iterator[str]:
    """Yield the problems in names and limits of rules."""
    from ccagent.errors import nearest

    kinds = {name: kind for each in standard_classes() for name, kind in each.settable.items()}
    for name, rule in rules.items():
        where = f'allow."{name}"'
        kind = kinds.get(name)
        is_number = kind in {"integer", "real"}
        has_range = rule.min is not None and rule.max is not None
        if name.startswith(CONFIG):
            yield from (f"{where}: {problem}" for problem in _find_wrong_key(name, rule))
        elif kind is None:
            yield f"{where}: no control that can be set{nearest(name, sorted(kinds))}"
        elif is_number and not (rule.values or has_range):
            yield f"{where}: values, or min and max, are needed"
        elif kind == "choice" and not rule.values:
            yield f"{where}: values are needed"
        elif not is_number and (rule.min is not None or rule.max is not None):
            yield f"{where}: min and max are for numbers"


def check_controls(settings: ControlsSettings) -> None:
    """Check login, TLS, signatures and names of controls. This needs files and libraries.

    Raise ConfigurationError if one is invalid.
    """
    problems = list(find_unknown_rules(settings.allow))
    if settings.url:
        from ccagent.net.nats_login import check_client

        try:
            check_client(settings)
        except ConfigurationError as error:
            problems += error.problems
    if any(each.startswith("key:") for each in all_senders(settings)):
        from ccagent.net.signatures import missing_library

        problems += missing_library("from")
    if problems:
        raise ConfigurationError(*(f"controls.{problem}" for problem in problems))


ControlSetup = ServiceSetup[ControlsSettings]


def load_setup(path: str | None, *, needs_table: bool) -> ControlSetup:
    """Read and check the file; without `path` the default file. It must exist for the service.

    The host name keeps its domain: a request may contain either name. Raise ConfigurationError with
    file, line, key and reason.
    """
    setup = load_service(
        path, "controls", ControlsSettings, check_controls, needs_table=needs_table
    )
    return setup._replace(hostname_only=False)


def without_file() -> ControlSetup:
    """Return the setup of commands without a file."""
    return ControlSetup(DEFAULT_PATH, ControlsSettings(), {}, hostname_only=False)
