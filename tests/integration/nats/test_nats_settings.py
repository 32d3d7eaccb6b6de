"""Keys of `nats://` and `tls://` that can't work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ccagent.config.duration import Duration
from ccagent.errors import ConfigurationError
from ccagent.net.nats_login import is_encrypted
from ccagent.transports.nats import NatsSettings, check_settings
from tests.support.certificates import Authority
from tests.support.nats_server import Bench, new_seed

if TYPE_CHECKING:
    pass

PASSWORD = "correct horse: battery/staple"


@pytest.mark.parametrize(
    ("url", "servers"),
    [
        ("nats://h", ["h:4222"]),
        ("tls://h:1/", ["h:1"]),
        ("nats://a,b:2,nats://c:3", ["a:4222", "b:2", "c:3"]),
        ("NATS://[::1]:7", ["[::1]:7"]),
    ],
)
def test_servers(url: str, servers: list[str]) -> None:
    assert [str(server) for server in check_settings(NatsSettings(url=url))] == servers


@pytest.mark.parametrize(
    ("url", "keys", "expected"),
    [
        ("nats://h", {}, False),
        ("TLS://h", {}, True),
        ("nats://h", {"insecure": True}, True),
        ("nats://h", {"ca_file": "ca.pem"}, True),
        ("nats://h", {"certificate_file": "c.pem"}, True),
    ],
)
def test_certificates_mean_tls(url: str, keys: dict[str, Any], expected: bool) -> None:
    assert is_encrypted(NatsSettings(url=url, **keys)) is expected


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("nats://", "HOST"),
        ("nats://h,", "HOST"),
        ("nats://h/path", "HOST"),
        ("nats://h?x=hidden", "nothing after it"),
        ("nats://a,tls://b", "nothing after it"),
        ("nats://h:port", "malformed"),
        ("nats://h:99999", "malformed"),
        ("nats://a b", "ASCII"),
        ("nats://ä", "ASCII"),
        ("nats://fox:hidden@h", "password-file"),
        ("nats://hidden@h:99999", "password-file"),
        ("nats://a,fox:hid/den@h", "password-file"),
    ],
)
def test_urls_that_cant_work_are_refused(bench: Bench, url: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason) as caught:
        bench.connect(url)
    assert "hid" not in str(caught.value)


def test_keys_that_cant_work_are_refused(bench: Bench, tmp_path: Path) -> None:
    path, seed = bench.secret(PASSWORD), bench.secret(new_seed(), "seed")
    pem, key = Authority(tmp_path).certify("client")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"user": "fox", "password_file": path, "token_file": path}, "exclude each other"),
        ({"nkey_file": seed, "token_file": path}, "exclude each other"),
        ({"user": "fox"}, "need each other"),
        ({"password_file": path}, "need each other"),
        ({"certificate_file": pem}, "need each other"),
        ({"key_file": path}, "need each other"),
        ({"nkey_file": path}, f"^{path}: not the seed"),
        ({"creds_file": seed}, f"^{seed}: it holds no user's JWT"),
        ({"time_limit": Duration("0s")}, "time-limit"),
        ({"time_limit": Duration("2d")}, "time-limit"),
        ({"ca_file": "/nowhere/ca.pem"}, "^ca-file: /nowhere/ca.pem: No such file"),
        ({"ca_file": path}, f"^ca-file: {path}: "),
        (
            {"certificate_file": path, "key_file": key},
            f"^certificate-file {path}, key-file {key}",
        ),
        ({"subject": "a b"}, "^subject: "),
        ({"subject": "{cluster}.>"}, "^subject: "),
        ({"subject": "*.{kind}"}, "^subject: "),
        ({"subject": "a..b"}, "^subject: "),
        ({"subject": "{prefix}"}, "^subject: .*empty"),
        ({"subject": "{custer}.x"}, "^subject: .*{cluster}"),
    ]
    for keys, reason in cases:
        with pytest.raises(ConfigurationError, match=reason) as caught:
            bench.connect("nats://localhost", **keys)
        assert PASSWORD not in str(caught.value)
