"""The table [exporter]: what is refused, and what its errors say."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from ccagent.config.configuration import check
from ccagent.errors import ConfigurationError
from ccagent.exporter.settings import Address, parse_address

TLS = {"certificate-file": "/a.pem", "key-file": "/a.key"}


def problems(**keys: Any) -> str:
    table = {"exporter": {name.replace("_", "-"): value for name, value in keys.items()}}
    try:
        check(table, "file")
    except ConfigurationError as error:
        return " | ".join(error.problems)
    return ""


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9500", Address("127.0.0.1", 9500)),
        ("[::1]:1", Address("::1", 1)),
        (":9500", Address("", 9500)),
        ("localhost:0", Address("localhost", 0)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "9500", "::1:9500", "a.example:1", "127.0.0.1:65536", "x:y"])
def test_what_is_no_address(text: str) -> None:
    assert "listen" in problems(listen=[text])


@pytest.mark.parametrize(
    "text", ["127.0.0.1:1", "127.8.0.1:1", "[::1]:1", "localhost:1", "systemd"]
)
def test_loopback_needs_nothing(text: str) -> None:
    assert not problems(listen=[text])


@pytest.mark.parametrize("text", [":1", "0.0.0.0:1", "[::]:1", "192.0.2.1:1", "[2001:db8::1]:1"])
def test_the_network_needs_tls_and_a_password(text: str) -> None:
    refused = "is open to the network"
    assert refused in problems(listen=[text])
    assert refused in problems(listen=[text], users_file="/u")
    assert refused in problems(listen=[text], **TLS)
    assert not problems(listen=[text], users_file="/u", **TLS)
    assert not problems(listen=[text], client_ca_file="/c", **TLS)
    assert not problems(listen=[text], insecure=True)


@pytest.mark.parametrize(
    ("keys", "part"),
    [
        ({"names": []}, "names: is empty"),
        ({"names": ["node-exporter"]}, "exporter.names"),
        ({"collectors": ["cpus"]}, "did you mean 'cpu'"),
        ({"exclude": ["x" * 30]}, "exclude:"),
        ({"path": "metrics"}, "path:"),
        ({"path": "/"}, "path:"),
        ({"path": "/my metrics"}, "path:"),
        ({"path": "/métriques"}, "path:"),
        ({"path": "/a#b"}, "path:"),
        (
            {"names": ["node_exporter"], "collectors": ["cpu", "jobs"]},
            "collectors: 'jobs' needs ccagent in names",
        ),
        ({"certificate-file": "/a"}, "certificate-file, key-file: both"),
        ({"client-ca-file": "/a"}, "client-ca-file: needs"),
        ({"client-names": ["a"]}, "client-names: needs"),
        ({"certificate-file": "a", "key-file": "b"}, "an absolute path"),
        ({"certificate-file": "/a", "key-file": "b"}, "key-file: expected an absolute path"),
        ({"users-file": "users"}, "users-file: expected an absolute path"),
        ({"time-limit": "1h"}, "time-limit"),
        ({"min-interval": "2m"}, "min-interval"),
        ({"client-timeout": "0s"}, "client-timeout"),
        ({"clients": 0}, "clients"),
        ({"gpu-vendors": ["intel"]}, "gpu-vendors"),
        ({"node-exporter": {"disk-exclude": "("}}, "disk-exclude: invalid regular expression"),
        ({"lisen": []}, "did you mean 'listen'"),
    ],
)
def test_what_is_refused(keys: dict[str, Any], part: str) -> None:
    assert part in problems(**keys)


def test_nothing_of_it_is_imported_without_the_table() -> None:
    program = (
        "import sys; from ccagent.config.configuration import check\n"
        "import ccagent.daemon.daemon\n"
        "assert check({}, 'file').exporter is None\n"
        "print([m for m in sys.modules if 'prometheus' in m or m in ('ssl', 'http', 'hashlib')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True
    )
    assert done.stdout == "[]\n"
