"""Signed requests: an nkey signs subject, time, nonce and body. Senders may share a subject.

A message without headers, such as that of MQTT, begins with them as comments of YAML.

Headers: Ccagent-Key (public key of a user), Ccagent-Time (ns since 1970), Ccagent-Nonce and
Ccagent-Signature (base64). A signature is valid once, within a minute, and only if it was made
after the start of this service: it can't be replayed after a restart.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections import OrderedDict
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ccagent.errors import ConfigurationError, ControlError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

KEY, TIME, NONCE, SIGNATURE = (
    "Ccagent-Key", "Ccagent-Time", "Ccagent-Nonce", "Ccagent-Signature",
)  # fmt: skip

_WINDOW = 60.0
_REMEMBERED = 100_000
_USER = 20 << 3
_FORM_OF_KEY = re.compile(r"U[A-Z2-7]{55}", re.ASCII)
_FORM_OF_NONCE = re.compile(r"[A-Za-z0-9_-]{8,64}", re.ASCII)
_COMMENT = re.compile(rb"# (Ccagent-[A-Za-z]{3,9}): ([!-~]{1,128})\r?\n")
_FORM_OF_TIME = re.compile(r"[0-9]{1,19}", re.ASCII)


def missing_library(key: str) -> Iterator[str]:
    """Yield the missing libraries for the signatures that a key of the configuration wants."""
    if find_spec("nkeys") is None:
        from ccagent.machine.interpreter import install_command

        yield f"{key}: signatures need a library: {install_command('nkeys')}"


def read_seed(path: str) -> str:
    """Return the seed in the file of the option --sign. Raise ConfigurationError."""
    from ccagent.config.secret import read_secret
    from ccagent.net.nats_login import is_seed

    if problems := [*missing_library("--sign")]:
        raise ConfigurationError(*problems)
    seed = read_secret(path)
    if not is_seed(seed):
        raise ConfigurationError(f"--sign: {path}: not the seed of a user's nkey (SU...)")
    return seed


def signed_text(subject: str, time: str, nonce: str, body: bytes) -> bytes:
    """Return the signed bytes."""
    return f"ccagent-control-1\n{subject}\n{time}\n{nonce}\n".encode() + body


def sign(seed: str, subject: str, body: bytes, now: float) -> dict[str, str]:
    """Return the headers that sign a request."""
    nkeys: Any = import_module("nkeys")  # the package has no types
    pair = nkeys.from_seed(bytearray(seed.encode()))
    time, nonce = str(int(now * 1e9)), os.urandom(16).hex()
    signature = bytes(pair.sign(signed_text(subject, time, nonce, body)))
    return {
        KEY: bytes(pair.public_key).decode(),
        TIME: time,
        NONCE: nonce,
        SIGNATURE: base64.b64encode(signature).decode(),
    }


def write_signed(seed: str, subject: str, body: bytes, now: float) -> bytes:
    """Return a message of YAML with the headers that sign it."""
    headers = sign(seed, subject, body, now).items()
    return "".join(f"# {name}: {value}\n" for name, value in headers).encode() + body


def split_signed(payload: bytes) -> tuple[dict[str, str], bytes]:
    """Return the headers of a message of YAML, by their names in lower case, and its body."""
    headers: dict[str, str] = {}
    place = 0
    while (found := _COMMENT.match(payload, place)) is not None:
        headers[found[1].decode().lower()] = found[2].decode()
        place = found.end()
    return headers, payload[place:]


class SignatureCheck:
    """Checks signatures of one service."""

    def __init__(self, started: float, keys: Iterable[str]) -> None:
        """Check signatures of these public keys."""
        self.keys = frozenset(keys)
        self._started = started
        self._seen: dict[str, OrderedDict[str, float]] = {}
        """Used nonces and their times, by key."""

    def signer(self, subject: str, headers: Mapping[str, str], body: bytes, now: float) -> str:
        """Return the public key that signed a request; "" if it is not signed.

        A signature by a key that is not in the policy is ignored.

        headers: names in lower case. Raise ControlError for an invalid signature.
        """
        if KEY.lower() not in headers:
            return ""
        key, time, nonce, signature = (
            headers.get(name.lower(), "") for name in (KEY, TIME, NONCE, SIGNATURE)
        )
        if not (
            _FORM_OF_KEY.fullmatch(key)
            and _FORM_OF_TIME.fullmatch(time)
            and _FORM_OF_NONCE.fullmatch(nonce)
        ):
            raise ControlError("signature: malformed key, time or nonce")
        if key not in self.keys:
            return ""  # unknown keys may sign any number of requests: nothing is stored for them
        made = int(time) / 1e9
        if abs(now - made) > _WINDOW:
            raise ControlError("signature: older than a minute, or the clocks differ")
        if made < self._started:
            raise ControlError("signature: made before this service started: sign again")
        # The check of a signature costs most, so it comes last, and once per message.
        if nonce in self._seen.get(key, ()):
            raise ControlError("signature: used before")
        if not _is_valid(key, signature, signed_text(subject, time, nonce, body)):
            raise ControlError("signature: it does not fit the request")
        self._remember(key, nonce, now)
        return key

    def _remember(self, key: str, nonce: str, now: float) -> None:
        """Remember a nonce of a key. Raise ControlError above the key's part of the memory."""
        seen = self._seen.setdefault(key, OrderedDict())
        while seen and next(iter(seen.values())) < now - 2 * _WINDOW:
            seen.popitem(last=False)
        if len(seen) >= _REMEMBERED // max(1, len(self.keys)):
            raise ControlError("signature: too many signed requests of this key within a minute")
        seen[nonce] = now


def _is_valid(key: str, signature: str, text: bytes) -> bool:
    """Return whether a signature of a text is valid for a user's public key."""
    try:
        raw = base64.b32decode(key)
        given = base64.b64decode(signature, validate=True)
    except (binascii.Error, ValueError):
        return False
    checksum = int.from_bytes(raw[-2:], "little")
    if raw[0] != _USER or binascii.crc_hqx(raw[:-2], 0) != checksum or len(given) != 64:
        return False
    signing: Any = import_module("nacl.signing")
    exceptions: Any = import_module("nacl.exceptions")
    try:
        signing.VerifyKey(raw[1:33]).verify(text, given)
    except exceptions.BadSignatureError:
        return False
    return True
