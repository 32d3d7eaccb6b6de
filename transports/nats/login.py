"""Login to NATS with password, token, nkey, or a user's JWT."""

from __future__ import annotations

import base64
import binascii
import re
from importlib import import_module
from typing import Any, NamedTuple

_SEED = re.compile(r"SU[A-Z2-7]{56}")
_CREDENTIALS = re.compile(
    r"-BEGIN NATS USER JWT-+\s+(?P<jwt>[\w.-]+)\s.*-BEGIN USER NKEY SEED-+\s+(?P<seed>\w+)\s",
    re.ASCII | re.DOTALL,
)


class NatsLogin(NamedTuple):
    """The login at a server. Unused fields are empty. `seed` only signs and is not sent."""

    user: str = ""
    password: str = ""
    token: str = ""
    seed: str = ""
    jwt: str = ""

    def options(self) -> dict[str, Any]:
        """Return the arguments of nats-py's `connect`."""
        if self.jwt:
            return {"user_jwt_cb": self.jwt.encode, "signature_cb": self._sign}
        if self.seed:
            return {"nkeys_seed_str": self.seed}
        if self.token:
            return {"token": self.token}
        return {"user": self.user, "password": self.password} if self.password else {}

    @property
    def secrets(self) -> list[str]:
        """The secret parts, for the filter of texts."""
        return [*filter(None, (self.password, self.token, self.seed, self.jwt))]

    def _sign(self, nonce: str) -> bytes:
        nkeys: Any = import_module("nkeys")  # the package has no types
        key = nkeys.from_seed(bytearray(self.seed.encode()))
        return base64.b64encode(key.sign(nonce.encode()))


def parse_credentials(text: str) -> NatsLogin | None:
    """Return a user's JWT and seed from the text of a creds file; None if they are missing."""
    found = _CREDENTIALS.search(text)
    if found is None or not is_seed(found["seed"]):
        return None
    return NatsLogin(seed=found["seed"], jwt=found["jwt"])


def is_seed(text: str) -> bool:
    """Return whether a text is a user's seed: base32 with a CRC-16 at the end."""
    if not _SEED.fullmatch(text):
        return False
    raw = base64.b32decode(text + "======")
    return binascii.crc_hqx(raw[:-2], 0) == int.from_bytes(raw[-2:], "little")
