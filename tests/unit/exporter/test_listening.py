"""The sockets that systemd passes."""

from __future__ import annotations

import os
import socket

import pytest

from ccagent.errors import ConfigurationError
from ccagent.exporter import service
from ccagent.exporter.http_connection import ExporterConnection
from ccagent.exporter.service import passed_sockets
from ccagent.exporter.settings import ExporterSettings


def test_a_socket_of_datagrams_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as passed:
        passed.bind(("127.0.0.1", 0))
        monkeypatch.setattr(service, "_FIRST", passed.fileno())
        monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
        monkeypatch.setenv("LISTEN_FDS", "1")
        with pytest.raises(ConfigurationError, match="ListenStream"):
            passed_sockets(ExporterSettings(listen=("systemd",)))


def test_a_response_waits_for_no_acknowledgement() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        connected, _ = listening.accept()
        with client, connected:
            connection = ExporterConnection(connected, 0.0)
            assert connection.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
