"""Keys of network transports: logins, certificates, time limits."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from ccagent.config import tls_keys
from ccagent.config.duration import Duration
from ccagent.transports.base import SinkSettings


class NetworkSinkSettings(SinkSettings, frozen=True, kw_only=True):
    """Keys of every sink on the network."""

    renamed: ClassVar[dict[str, str]] = {"allow-clear": "allow-cleartext"}

    user: Annotated[str, Meta(description="user of the password")] = ""
    password_file: Annotated[str, Meta(description="file with the password")] = ""
    ca_file: tls_keys.CaFile = ""
    certificate_file: tls_keys.CertificateFile = ""
    key_file: tls_keys.KeyFile = ""
    insecure: tls_keys.Insecure = False
    allow_cleartext: tls_keys.AllowCleartext = False
    time_limit: Annotated[
        Duration, Meta(description="maximum time for a connection, and for each answer")
    ] = Duration("10s")
