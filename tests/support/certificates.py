"""Certificates for servers and clients of tests, made with openssl."""

from __future__ import annotations

import ssl
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
_CONFIGURATION = """
[ca]
default_ca = test
[test]
dir = .
database = index.txt
new_certs_dir = .
rand_serial = yes
default_md = sha256
policy = any
copy_extensions = copy
unique_subject = no
[any]
commonName = supplied
"""


class Authority:
    """A CA below a directory, which certifies 127.0.0.1 and clients."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.certificate = str(directory / "ca.pem")
        (directory / "index.txt").touch()
        (directory / "ca.cnf").write_text(_CONFIGURATION)
        self._run(
            "req", "-x509", *_KEY, "-days", "2", "-subj", "/CN=Test CA",
            "-keyout", "ca.key", "-out", "ca.pem",
        )  # fmt: skip

    def certify(self, name: str, *, expired: bool = False) -> tuple[str, str]:
        """Make NAME.pem and NAME.key, for 127.0.0.1, and give their paths."""
        end = "20200102000000Z" if expired else "20991231000000Z"
        self._run(
            "req", *_KEY, "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1",
            "-keyout", f"{name}.key", "-out", f"{name}.csr",
        )  # fmt: skip
        self._run(
            "ca", "-batch", "-config", "ca.cnf", "-cert", "ca.pem", "-keyfile", "ca.key", "-notext",
            "-startdate", "20200101000000Z", "-enddate", end,
            "-in", f"{name}.csr", "-out", f"{name}.pem",
        )  # fmt: skip
        key = self.directory / f"{name}.key"
        key.chmod(0o600)
        return str(self.directory / f"{name}.pem"), str(key)

    def context(
        self, name: str, *, expired: bool = False, wants_client: bool = False
    ) -> ssl.SSLContext:
        """Make a server's context with a certificate of its own."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.certify(name, expired=expired))
        if wants_client:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.certificate)
        return context

    def _run(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.directory, check=True, capture_output=True)
