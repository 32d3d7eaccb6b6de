"""Conversion of ClusterCockpit's config.json to the store's settings."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from ccagent.config.conversion import convert
from ccagent.config.duration import Duration
from ccagent.config.settings import as_list, as_table
from ccagent.errors import ConfigurationError
from ccagent.stores.metrics.settings import StoreSettings

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600}
_FORMATS = {"wal": "binary", "json": "json"}

_KNOWN = {
    "main": {
        "addr", "https-cert-file", "https-key-file", "jwt-public-key", "user", "group",
        "backend-url", "debug",
    },
    "nats": {"address", "username", "password", "creds-file-path"},
    "metric-store": {
        "retention-in-memory", "memory-cap", "num-workers", "checkpoint-interval", "checkpoints",
        "cleanup", "nats-subscriptions",
    },
}  # fmt: skip


def convert_reference(text: str, place: str) -> StoreSettings:
    """Return the settings of a config.json. Raise ConfigurationError.

    ccagent's log is placed beside the checkpoints.
    """
    try:
        table = as_table(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{place}: not JSON: {error}") from error
    problems = [
        f"{place}: {section}.{key}: there is no such key"
        for section, keys in _KNOWN.items()
        for key in as_table(table.get(section)).keys() - keys
    ]
    problems += [
        f"{place}: {key}: there is no such key" for key in table.keys() - {*_KNOWN, "metrics"}
    ]
    if problems:
        raise ConfigurationError(*sorted(problems))
    main, store, nats = (as_table(table.get(name)) for name in ("main", "metric-store", "nats"))
    files = as_table(store.get("checkpoints"))
    directory = str(files.get("directory", "./var/checkpoints"))
    cleanup = as_table(store.get("cleanup"))
    is_archived = cleanup.get("mode") == "archive"
    metrics = {name: _metric(as_table(one)) for name, one in as_table(table.get("metrics")).items()}
    try:
        found: dict[str, Any] = {
            "data": f"{directory.rstrip('/')}.ccagent",
            "listen": str(main.get("addr", "localhost:8080")),
            "retention": _duration(store["retention-in-memory"]),
            "memory-cap": f"{int(store['memory-cap'])}GB",
            "jwt-public-key": str(main.get("jwt-public-key") or ""),
            "backend-url": str(main.get("backend-url") or ""),
            "metrics": metrics,
            "checkpoints": {
                "format": _FORMATS[files.get("file-format", "wal")],
                "directory": directory,
                "interval": _duration(store.get("checkpoint-interval", "12h")),
            },
            "archive": {"directory": str(cleanup["directory"]) if is_archived else ""},
            "tls": {
                "certificate": str(main.get("https-cert-file") or ""),
                "key": str(main.get("https-key-file") or ""),
            },
        }
    except KeyError as error:
        raise ConfigurationError(f"{place}: {error.args[0]}: missing or unknown value") from error
    except (ValueError, TypeError, OverflowError) as error:
        raise ConfigurationError(f"{place}: {error}") from error
    if nats.get("address"):
        found["nats"] = _nats(nats, store)
    return convert(found, StoreSettings, "", place=place)


def _metric(one: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"frequency": f"{one.get('frequency', 0)}s"}
    if one.get("aggregation"):
        found["aggregation"] = one["aggregation"]
    return found


def _nats(nats: dict[str, Any], store: dict[str, Any]) -> dict[str, Any]:
    address = str(nats["address"])
    return {
        "url": address if "://" in address else f"nats://{address}",
        "user": str(nats.get("username") or ""),
        "password": str(nats.get("password") or ""),
        "creds-file": str(nats.get("creds-file-path") or ""),
        "subscriptions": [
            {
                "subject": str(one.get("subscribe-to", "")),
                "cluster": str(one.get("cluster-tag", "")),
            }
            for one in (as_table(each) for each in as_list(store.get("nats-subscriptions")))
        ],
    }


def _duration(text: object) -> str:
    """Return a Go duration, such as `1h30m`, in whole seconds. Raise ValueError."""
    parts = _DURATION.findall(str(text))
    if not parts or "".join(number + unit for number, unit in parts) != str(text):
        raise ValueError(f"{text!r} is not a duration such as '48h' or '1h30m'")
    seconds = math.ceil(sum(float(number) * _SECONDS[unit] for number, unit in parts))
    return str(Duration(f"{seconds}s"))
