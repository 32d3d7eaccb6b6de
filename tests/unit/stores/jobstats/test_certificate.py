"""The store's certificate, and its renewal."""

from __future__ import annotations

import contextlib
import shutil
import ssl
from pathlib import Path
from typing import Any

import pytest

from ccagent.errors import ConfigurationError
from ccagent.stores.jobstats.server import make_context, renew_certificate
from ccagent.stores.metrics.settings import StoreTlsSettings
from tests.support.certificates import Authority


def shake_hands(server: ssl.SSLContext, authority: Authority) -> str:
    """Return the name in the certificate that a client gets."""
    client = ssl.create_default_context(cafile=authority.certificate)
    client.check_hostname = False
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server)
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    for side in (asking, answering, asking, answering):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    certificate: Any = asking.getpeercert()
    return str(certificate["subject"][0][0][1])


def test_a_renewed_certificate_replaces_the_old_one_only_with_its_key(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    old, new = authority.certify("old"), authority.certify("new")
    tls = StoreTlsSettings(certificate=str(tmp_path / "store.pem"), key=str(tmp_path / "store.key"))
    shutil.copy(old[0], tls.certificate)
    shutil.copy(old[1], tls.key)
    context = make_context(tls)
    assert context is not None
    shutil.copy(new[0], tls.certificate)
    with pytest.raises(ConfigurationError, match=r"^tls: .*store.pem and .*store.key: "):
        renew_certificate(context, tls)
    assert shake_hands(context, authority) == "old"
    shutil.copy(new[1], tls.key)
    renew_certificate(context, tls)
    assert shake_hands(context, authority) == "new"
