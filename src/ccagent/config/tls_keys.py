"""Keys of a client's TLS, for the settings of all clients."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

CaFile = Annotated[str, Meta(description="certificates to trust; empty: those of the system")]
CertificateFile = Annotated[str, Meta(description="client certificate")]
KeyFile = Annotated[str, Meta(description="key of the client certificate, not encrypted")]
Insecure = Annotated[bool, Meta(description="do not verify the server; a warning at each start")]
AllowCleartext = Annotated[
    bool, Meta(description="send a password or token unencrypted to another machine")
]
