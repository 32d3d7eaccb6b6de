"""Keys of network transports: logins, certificates, time limits."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from ccagent.config.duration import Duration
from ccagent.transports.base import SinkSettings


class NetworkSinkSettings(SinkSettings, frozen=True, kw_only=True):
    """Keys of every sink on the network."""

    renamed: ClassVar[dict[str, str]] = {"allow-clear": "allow-cleartext"}

    user: Annotated[str, Meta(description="user of the password")] = ""
    password_file: Annotated[str, Meta(description="file with the password")] = ""
    ca_file: Annotated[
        str, Meta(description="certificates to trust; empty: those of the system")
    ] = ""
    certificate_file: Annotated[str, Meta(description="client certificate")] = ""
    key_file: Annotated[str, Meta(description="key of the client certificate, not encrypted")] = ""
    insecure: Annotated[
        bool, Meta(description="do not verify the server; a warning at each start")
    ] = False
    allow_cleartext: Annotated[
        bool, Meta(description="send a password or token unencrypted to another machine")
    ] = False
    time_limit: Annotated[
        Duration, Meta(description="maximum time for a connection, and for each answer")
    ] = Duration("10s")
