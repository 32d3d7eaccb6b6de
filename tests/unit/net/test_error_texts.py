"""Texts for errors of connections, and texts of receivers without secrets."""

from __future__ import annotations

import base64
import html
import json
import quopri
import socket
import ssl
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.net.error_texts import WITHHELD, explain_network_error, hide_secrets

if TYPE_CHECKING:
    from collections.abc import Callable

SECRETS = [
    'pa"ss\\wörd',
    "correct horse: battery/staple",
    "a-b-c-d-e",
    "日本語パスワード",
    "🐎horse-🔋battery",
]

ESCAPES: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "upper case": str.upper,
    "JSON": json.dumps,
    "JSON in JSON": lambda secret: json.dumps(json.dumps({"pass": secret})),
    "JSON without ASCII escapes": lambda secret: json.dumps(secret, ensure_ascii=False),
    "Python": ascii,
    "repr of bytes": lambda secret: repr(secret.encode()),
    "every character escaped": lambda s: "".join(f"\\u{ord(c):04x}" for c in s.replace("🐎", "")),
    "braces": lambda secret: "".join(f"\\u{{{ord(c):x}}}" for c in secret),
    "octal": lambda secret: "".join(f"\\{byte:03o}" for byte in secret.encode()),
    "URL": lambda secret: quote(secret, safe=""),
    "URL, every byte": lambda secret: "".join(f"%{byte:02X}" for byte in secret.encode()),
    "form": quote_plus,
    "URL in URL": lambda secret: quote(quote(secret)),
    "HTML": html.escape,
    "HTML, numbers": lambda secret: "".join(f"&#{ord(c)};" for c in secret),
    "mail": lambda secret: quopri.encodestring(secret.encode()).decode(),
    "base64": lambda secret: base64.b64encode(secret.encode()).decode(),
    "base64 for URLs": lambda secret: (
        base64.urlsafe_b64encode(secret.encode()).decode().rstrip("=")
    ),
    "base64 after a user": lambda secret: base64.b64encode(f"fox:{secret}".encode()).decode(),
    "base64 twice": lambda s: base64.b64encode(base64.b64encode(s.encode())).decode(),
    "base64 in lines": lambda secret: "\\n".join(base64.b64encode(secret.encode()).decode()[:40]),
    "base64 without its beginning": lambda s: base64.b64encode(b"x" * 50 + s.encode()).decode()[7:],
    "base64 in lower case": lambda s: (
        base64.b64encode(b"fox:" + s.encode() + b"!!").decode().lower()
    ),
    "hexadecimal": lambda secret: secret.encode().hex(),
    "hexadecimal with spaces": lambda secret: secret.encode().hex(" "),
    "hexadecimal in C": lambda secret: ", ".join(f"0x{byte:02x}" for byte in secret.encode()),
    "numbers of Go": lambda secret: str([*secret.encode()]).replace(",", ""),
    "read as Latin-1": lambda secret: secret.encode().decode("latin-1"),
    "one letter a word": " ".join,
    "its first half": lambda secret: secret[: max(4, len(secret) // 2)],
    "its second half": lambda secret: secret[-max(4, len(secret) // 2) :],
    "four of it": lambda secret: secret[1:5],
}


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("form", ESCAPES)
def test_no_form_of_a_secret_is_shown(secret: str, form: str) -> None:
    said = f"'unknown command: CONNECT {{pass: {ESCAPES[form](secret)}}}'"
    assert hide_secrets(said, [secret]) == WITHHELD


@pytest.mark.parametrize("secret", ["x1", "abc", "!?%"])
def test_a_short_secret_is_sought_as_a_whole(secret: str) -> None:
    assert hide_secrets(f"bad login {secret}", [secret]) == WITHHELD
    assert hide_secrets("bad login", [secret]) == "bad login"


@pytest.mark.parametrize(
    "text",
    [
        "maximum messages exceeded",
        '{"stored": 17}',
        "no such cluster: fox",
        "écrit",
        "100 %+&=\\",
        "[1 2]",
    ],
)
def test_other_text_is_shown(text: str) -> None:
    assert hide_secrets(f" {text}\n", SECRETS) == text


def test_without_a_login_all_is_shown_as_one_line() -> None:
    assert (
        hide_secrets("two\nlines \x1b[2J" + "x" * 500, [""])
        == ("two\\nlines \\x1b[2J" + "x" * 500)[:200]
    )


def test_names_of_ours_may_resemble_a_secret() -> None:
    said = "kafka1.example.org: Connection refused"
    assert hide_secrets(said, ["kafka-2024"], own=["kafka1.example.org"]) == said
    assert hide_secrets(said, ["kafka-2024"]) == WITHHELD


def test_a_name_that_holds_the_secret_excuses_nothing() -> None:
    assert hide_secrets("you said: kafka-2024", ["kafka-2024"], own=["kafka-2024"]) == WITHHELD


@pytest.mark.parametrize(
    "said",
    [
        "401: wrong password fritz123 for fritz",
        "401: wrong password fritz12 for fritz",
        "401: wrong password FRITZ-123",
        "401: wrong password frin1tz12n13",
        "401: wrong password fritz\\u0031\\u0032\\u0033",
    ],
)
def test_a_name_that_a_secret_begins_with_excuses_only_itself(said: str) -> None:
    own = ("fritz", "n1", "sample", "")
    assert hide_secrets(said, ["fritz123"], own) == WITHHELD
    assert hide_secrets("401: no user fritz", ["fritz123"], own) == "401: no user fritz"


@given(st.text(min_size=4), st.text(), st.text(), st.sampled_from(["JSON", "URL", "as it is"]))
def test_no_secret_passes(secret: str, before: str, after: str, form: str) -> None:
    secret = secret.encode("utf-8", "ignore").decode().strip()
    if len(secret) >= 4:
        said = f"{before[:400]} {ESCAPES[form](secret)} {after}"
        assert secret not in hide_secrets(said, [secret])


@given(st.text(), st.lists(st.text()))
def test_any_text_gives_one_short_line(text: str, secrets: list[str]) -> None:
    shown = hide_secrets(text, secrets)
    assert shown.isprintable()
    assert len(shown) <= 200


def certificate_error() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError()
    error.verify_message = "certificate has expired"
    return error


def tls_error(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, reason)
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            socket.gaierror(-2, "Name or service not known"),
            "the name does not resolve: Name or service not known",
        ),
        (UnicodeError("label too long"), "the name does not resolve: it is not a host name"),
        (ConnectionRefusedError(111, "Connection refused"), "connection refused"),
        (TimeoutError(), "no answer within 0.5 s"),
        (certificate_error(), "its certificate can't be trusted: certificate has expired"),
        (
            tls_error("TLSV13_ALERT_CERTIFICATE_REQUIRED"),
            "the server requires a client certificate (certificate-file, key-file)",
        ),
        (tls_error("TLSV1_ALERT_UNKNOWN_CA"), "the server does not trust the client certificate"),
        (
            tls_error("WRONG_VERSION_NUMBER"),
            "TLS failed: wrong version number; perhaps the server does not speak TLS",
        ),
        (
            ssl.SSLEOFError(8, "EOF occurred"),
            "TLS was broken off: the server may not speak TLS, or require a key-file",
        ),
        (OSError(28, "No space left on device"), ""),
        (ValueError("other"), ""),
    ],
)
def test_each_error_has_a_sentence(error: Exception, sentence: str) -> None:
    assert explain_network_error(error, 0.5) == sentence
