"""`nats://`: logging in, and keeping secrets."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from ccagent.errors import ConfigurationError, RetryableError
from ccagent.net.error_texts import WITHHELD
from tests.support.nats_server import (
    Bench,
    ScriptedServer,
    greet,
    message,
    new_seed,
    nkeys,
    numbered,
    public_key,
    signed,
)

if TYPE_CHECKING:
    from nats.aio.client import Client

PASSWORD = "correct horse: battery/staple"
TOKEN = "s3cr3t-t0ken"


class Account(NamedTuple):
    """The configuration of a server and the keys that match it."""

    configuration: str
    keys: dict[str, str]


def jwt_account(bench: Bench) -> Account:
    """An operator, an account and a user, as `nsc` would make them."""
    operator = new_seed(nkeys.PREFIX_BYTE_OPERATOR)
    account = new_seed(nkeys.PREFIX_BYTE_ACCOUNT)
    user = new_seed()
    unlimited = {"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1,
                 "wildcards": True, "conn": -1, "leaf": -1}  # fmt: skip
    about = signed(operator, public_key(operator), "operator", {"type": "operator"})
    accounts = signed(
        operator, public_key(account), "account", {"type": "account", "limits": unlimited}
    )
    token = signed(
        account, public_key(user), "user", {"type": "user", "subs": -1, "data": -1, "payload": -1}
    )
    creds = (
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        "************************* IMPORTANT *************************\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user}\n------END USER NKEY SEED------\n"
    )
    return Account(
        f"operator: {about}\nresolver: MEMORY\n"
        f"resolver_preload: {{ {public_key(account)}: {accounts} }}\n",
        {"creds_file": bench.secret(creds)},
    )


def account(kind: str, bench: Bench) -> Account:
    if kind == "password":
        return Account(
            f'authorization {{ user: "fox", password: "{PASSWORD}" }}\n',
            {"user": "fox", "password_file": bench.secret(PASSWORD)},
        )
    if kind == "token":
        return Account(
            f'authorization {{ token: "{TOKEN}" }}\n', {"token_file": bench.secret(TOKEN)}
        )
    if kind == "nkey":
        seed = new_seed()
        return Account(
            f"authorization {{ users: [ {{ nkey: {public_key(seed)} }} ] }}\n",
            {"nkey_file": bench.secret(seed)},
        )
    return jwt_account(bench)


LOGINS = ["password", "token", "nkey", "creds"]


@pytest.mark.parametrize("kind", LOGINS)
def test_login(bench: Bench, kind: str) -> None:
    configuration, keys = account(kind, bench)
    server = bench.serve(configuration, with_jetstream=kind != "creds")
    bench.connect(server.url, **keys).send(numbered(3))
    with pytest.raises(RetryableError, match=f"^{server.url}: the login is refused$"):
        bench.connect(server.url).send([message()])


@pytest.mark.parametrize("kind", LOGINS)
def test_wrong_login(bench: Bench, kind: str) -> None:
    server = bench.serve(account(kind, bench).configuration, with_jetstream=kind != "creds")
    keys = account(kind, bench).keys
    if kind in {"password", "token"}:
        bench.secret("wrong")
    transport = bench.connect(server.url, **keys)
    with pytest.raises(RetryableError, match=f"^{server.url}: the login is refused$"):
        transport.send([message()])


def test_a_new_password_needs_no_restart(bench: Bench) -> None:
    configuration, keys = account("password", bench)
    server = bench.serve(configuration)
    path = bench.secret("old")
    transport = bench.connect(server.url, **keys)
    with pytest.raises(RetryableError, match="refused"):
        transport.send([message()])
    Path(path).unlink()
    with pytest.raises(RetryableError, match=f"^{path}: No such file"):
        transport.send([message()])
    bench.secret(PASSWORD)
    transport.send([message()])


@pytest.mark.parametrize("when", ["instead of PONG", "later", "in an answer"])
@pytest.mark.parametrize("secret", [PASSWORD, 'pa"ss\\wörd', "日本語パスワード", "{pass:12345}"])
@pytest.mark.parametrize("kind", ["password", "token"])
def test_no_error_shows_a_secret(
    bench: Bench, kind: str, secret: str, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    def script(server: ScriptedServer, connected: socket.socket) -> None:
        greet(connected, auth_required=True)
        lines = server.lines(connected)
        login = next(lines)
        echo = b"-ERR 'you said " + login + b"'\r\n"
        for line in lines:
            if line == b"PING":
                connected.sendall(echo if when == "instead of PONG" else b"PONG\r\n")
            elif line.startswith(b"HPUB") and when == "later":
                connected.sendall(echo)
            elif line.startswith(b"HPUB"):
                answer = json.dumps({"error": {"description": login.decode()}}).encode()
                inbox = line.split()[2]
                connected.sendall(b"MSG %s 1 %d\r\n%s\r\n" % (inbox, len(answer), answer))

    caplog.set_level(logging.DEBUG)
    keys = {"user": "fox"} if kind == "password" else {}
    path = bench.secret(secret)
    transport = bench.connect(
        bench.pretend(script).url, jetstream=True, **{f"{kind}_file": path}, **keys
    )
    with pytest.raises(RetryableError) as caught:
        transport.send([message()])
    assert str(caught.value).endswith(WITHHELD)
    transport.close()
    for form in (secret, json.dumps(secret)[1:-1], json.dumps(secret)[1:-1].lower()):
        assert form not in caplog.text


def test_no_stream_name_shows_a_secret(bench: Bench) -> None:
    server = bench.serve(f'authorization {{ token: "{TOKEN}" }}\n')
    transport = bench.connect(server.url, jetstream=True, token_file=bench.secret(TOKEN))

    async def add(_: Client, stream: Any) -> None:
        await stream.add_stream(name=TOKEN, subjects=["fox.>"])

    server.ask(add, token=TOKEN)
    transport.is_one_shot = True
    transport.send([message()])
    assert transport.answer
    assert TOKEN not in transport.answer
    assert TOKEN not in transport.probe(message()).message


@pytest.mark.parametrize("key", ["password_file", "token_file", "nkey_file", "creds_file"])
def test_a_secret_that_others_can_read_is_refused(bench: Bench, key: str) -> None:
    keys = account(key.removesuffix("_file"), bench).keys
    Path(keys[key]).chmod(0o604)
    with pytest.raises(ConfigurationError, match="others can read"):
        bench.connect("nats://localhost", **keys)


BAD_SEEDS: dict[str, Callable[[], str]] = {
    "without entropy": lambda: "SU" + "A" * 56,
    "cut": lambda: new_seed()[:-1],
    "lower case": lambda: new_seed().lower(),
    "of an account": lambda: new_seed(nkeys.PREFIX_BYTE_ACCOUNT),
    "reversed": lambda: "".join(reversed(new_seed())),
}
"""Made when a test runs: what is collected has to be the same in each process."""


@pytest.mark.parametrize("name", BAD_SEEDS)
def test_a_seed_that_is_none_is_refused_at_once(bench: Bench, name: str) -> None:
    seed = BAD_SEEDS[name]()
    path = bench.secret(seed)
    with pytest.raises(ConfigurationError, match=f"^{path}: not the seed of a user's nkey") as c:
        bench.connect("nats://localhost", nkey_file=path)
    assert seed not in str(c.value)
    path = bench.secret(
        "-----BEGIN NATS USER JWT-----\ne30.e30.x\n------END NATS USER JWT------\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
    with pytest.raises(ConfigurationError, match=f"^{path}: it holds no user's JWT and seed") as c:
        bench.connect("nats://localhost", creds_file=path)
    assert seed not in str(c.value)


@pytest.mark.parametrize(
    "host", ["192.0.2.1", "broker.example.org", "[2001:db8::1]", "localhost,broker.example.org"]
)
def test_a_secret_travels_unencrypted_only_on_demand(bench: Bench, host: str) -> None:
    path = bench.secret(TOKEN)
    with pytest.raises(ConfigurationError, match=f"^url: {path} would be sent unencrypted"):
        bench.connect(f"nats://{host}", token_file=path)
    bench.connect(f"nats://{host}", token_file=path, allow_cleartext=True)
    bench.connect(f"tls://{host}", token_file=path)
    bench.connect(f"nats://{host}", token_file=path, insecure=True)
    bench.connect(f"nats://{host}")
    bench.connect(f"nats://{host}", nkey_file=bench.secret(new_seed(), "seed"))


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3:4333", "[::1]"])
def test_a_secret_may_stay_on_this_machine(bench: Bench, host: str) -> None:
    bench.connect(f"nats://{host}", user="fox", password_file=bench.secret(PASSWORD))


def test_a_secret_of_systemd(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    server = bench.serve(account("token", bench).configuration)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(bench.directory))
    bench.connect(server.url, token_file="credential:secret").send([message()])


def test_nkeys_that_are_not_installed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_: str) -> None:
        return None

    monkeypatch.setattr("ccagent.net.nats_login.find_spec", nothing)
    with pytest.raises(
        ConfigurationError, match="^nkey-file: needs a library: .* -m pip install nkeys$"
    ):
        bench.connect("nats://localhost", nkey_file=bench.secret(new_seed()))
