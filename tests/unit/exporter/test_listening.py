"""The sockets that systemd passes."""

from __future__ import annotations

import os
import socket

import pytest

from ccagent.errors import ConfigurationError
from ccagent.exporter import listening
from ccagent.exporter.listening import passed_sockets
from ccagent.exporter.settings import ExporterSettings


def test_a_socket_of_datagrams_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as passed:
        passed.bind(("127.0.0.1", 0))
        monkeypatch.setattr(listening, "_FIRST", passed.fileno())
        monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
        monkeypatch.setenv("LISTEN_FDS", "1")
        with pytest.raises(ConfigurationError, match="ListenStream"):
            passed_sockets(ExporterSettings(listen=("systemd",)))
