"""All keys of Sonar's configuration: their kinds of values, and ccagent's equivalents.

Source: Sonar 0.19, doc/HOWTO-DAEMON.md and doc/HOWTO-HTTP.md.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

LOGIN_FILE = "/etc/ccagent/password"
"""The file for a password, because configurations contain no passwords."""


class Kind(enum.Enum):
    """Kinds of values."""

    TEXT = enum.auto()
    NAME = enum.auto()
    PATH = enum.auto()
    BOOL = enum.auto()
    COUNT = enum.auto()
    VOLUME = enum.auto()
    DURATION = enum.auto()
    CADENCE = enum.auto()
    STRINGS = enum.auto()
    SECRET = enum.auto()


class Known(NamedTuple):
    """A key of Sonar.

    to: ccagent's key; empty if none exists. note: a loss, or a task for the user. only: the note is
    only for this value. section, name: the main name of a key with several names.
    """

    to: str = ""
    kind: Kind = Kind.TEXT
    note: str = ""
    only: object = None
    section: str = ""
    name: str = ""


_DEBUGGING = "for debugging: `ccagent run -v`, `ccagent sample --once`"
_PASSWORD = f"passwords must be in files: write it to {LOGIN_FILE} and `chmod o=` that"
_OTHERS = "others must not be able to read that file: `chmod o=` it"

_SINKS = {
    ("kafka", "broker-address"): Known("sinks.kafka.url"),
    ("kafka", "remote-host"): Known(name="broker-address"),
    ("kafka", "rest-endpoint"): Known("sinks.kafka.url"),
    ("kafka", "http-proxy"): Known("sinks.kafka.proxy"),
    ("kafka", "rest-proxy"): Known(name="http-proxy"),
    ("kafka", "http-payload-limit"): Known("sinks.kafka.max-payload", Kind.VOLUME),
    ("kafka", "sending-window"): Known("sinks.kafka.sending-window", Kind.DURATION),
    ("kafka", "timeout"): Known("outbox.max-age", Kind.DURATION),
    ("kafka", "ca-file"): Known("sinks.kafka.ca-file", Kind.PATH),
    ("kafka", "sasl-password"): Known("sinks.kafka.password-file", Kind.SECRET, _PASSWORD),
    ("kafka", "sasl-password-file"): Known("sinks.kafka.password-file", Kind.PATH, _OTHERS),
    ("http", "api-root"): Known("sinks.http.url"),
    ("http", "http-proxy"): Known("sinks.http.proxy"),
    ("http", "ca-file"): Known("sinks.http.ca-file", Kind.PATH),
    ("http", "sending-window"): Known("sinks.http.sending-window", Kind.DURATION),
    ("http", "timeout"): Known("outbox.max-age", Kind.DURATION),
    ("http", "http-payload-limit"): Known(note="each envelope is a separate request"),
    ("http", "upload-password"): Known("sinks.http.password-file", Kind.SECRET, _PASSWORD),
    ("http", "upload-password-file"): Known("sinks.http.password-file", Kind.PATH, _OTHERS),
    ("directory", "data-directory"): Known("sinks.directory.url", Kind.PATH),
}

_AGENTS = {
    ("sample", "cadence"): Known("agents.sample.every", Kind.CADENCE),
    ("sample", "exclude-system-jobs"): Known("agents.sample.exclude-system-jobs", Kind.BOOL),
    ("sample", "load"): Known(kind=Kind.BOOL, note="the load is always sampled", only=False),
    ("sample", "batchless"): Known("agents.sample.jobs-by-process-group", Kind.BOOL),
    ("sample", "rollup"): Known("agents.sample.rollup", Kind.BOOL),
    ("sample", "exclude-users"): Known("agents.sample.exclude-users", Kind.STRINGS),
    ("sample", "exclude-commands"): Known("agents.sample.exclude-commands", Kind.STRINGS),
    ("sample", "min-cpu-time"): Known("agents.sample.min-cpu-time", Kind.DURATION),
    ("sysinfo", "cadence"): Known("agents.sysinfo.every", Kind.CADENCE),
    ("sysinfo", "on-startup"): Known("agents.sysinfo.on-startup", Kind.BOOL),
    ("sysinfo", "topo-svg-command"): Known(section="programs"),
    ("sysinfo", "topo-text-command"): Known(section="programs"),
    ("jobs", "cadence"): Known("agents.jobs.every", Kind.CADENCE),
    ("jobs", "window"): Known(
        kind=Kind.DURATION, note="ccagent remembers sent jobs and needs no window"
    ),
    ("jobs", "uncompleted"): Known("agents.jobs.uncompleted", Kind.BOOL),
    ("jobs", "incomplete"): Known(name="uncompleted"),
    ("jobs", "batch-size"): Known("agents.jobs.batch-size", Kind.COUNT),
    ("cluster", "cadence"): Known("agents.cluster.every", Kind.CADENCE),
    ("cluster", "on-startup"): Known("agents.cluster.on-startup", Kind.BOOL),
    ("cluster", "domain"): Known(note="names of nodes are sent as Slurm has them"),
}

KEYS = {
    ("global", "cluster"): Known("cluster", Kind.NAME),
    ("global", "role"): Known(note="ccagent has no roles: only agents with a table run"),
    ("global", "master-if"): Known(note="ccagent has no roles: the master needs a separate file"),
    ("global", "lock-directory"): Known("lock-directory", Kind.PATH),
    ("global", "lockdir"): Known(name="lock-directory"),
    ("global", "topic-prefix"): Known("topic-prefix", Kind.NAME),
    ("global", "hostname-only"): Known("hostname-only", Kind.BOOL),
    **_SINKS,
    **_AGENTS,
    ("programs", "curl-command"): Known(note="no curl is needed"),
    ("programs", "sacct-command"): Known("agents.jobs.sacct", Kind.PATH),
    ("programs", "scontrol-command"): Known("agents.sample.scontrol", Kind.PATH),
    ("programs", "sinfo-command"): Known("agents.cluster.sinfo", Kind.PATH),
    ("programs", "topo-svg-command"): Known("agents.sysinfo.topo-svg-command"),
    ("programs", "topo-text-command"): Known("agents.sysinfo.topo-text-command"),
    ("debug", "verbose"): Known(kind=Kind.BOOL, note=_DEBUGGING, only=True),
    ("debug", "oneshot"): Known(kind=Kind.BOOL, note=_DEBUGGING, only=True),
    ("debug", "time-limit"): Known(kind=Kind.DURATION, note=_DEBUGGING),
    ("debug", "output-delay"): Known(kind=Kind.DURATION, note=_DEBUGGING),
}
"""The keys by section and name."""
