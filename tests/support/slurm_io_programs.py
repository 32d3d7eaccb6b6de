"""Programs whose I/O and network traffic are known, for jobs of a Slurm in the emulated machine."""

from __future__ import annotations

from typing import NamedTuple

from tests.support.io_programs import FILES, FIO, FIO_FILE, SCRIPTS, fio_script


class KnownProgram(NamedTuple):
    """A program, and the file systems that it runs on.

    code: as in io_programs.SCRIPTS. files: names and sizes of what it finds there.
    """

    name: str
    code: str
    kinds: tuple[str, ...]
    files: dict[str, int]


STREAMS, STREAM_BYTES, BLOCK = 4, 4 << 20, 128 << 10
DATAGRAMS, DATAGRAM = 500, 1470
LOOPBACK_BYTES = 1_000_003

_LOAD = f"""
    import json
    ports = json.load(open("/tmp/ports.json"))
    def stream():
        peer = socket.create_connection(("10.99.0.2", ports["tcp"]))
        left = {STREAM_BYTES}
        block = b"x" * {BLOCK}
        while left:
            n = peer.send(block[:left])
            expect(tcp_sent_bytes=n, tcp_sends=1)
            left -= n
        peer.shutdown(socket.SHUT_WR)
        while data := peer.recv({BLOCK}):
            expect(tcp_received_bytes=len(data), tcp_receives=1)
    threads = [threading.Thread(target=stream) for _ in range({STREAMS})]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for _ in range({DATAGRAMS}):
        n = one.sendto(b"y" * {DATAGRAM}, ("10.99.0.2", ports["udp"]))
        expect(udp_sends=1, udp_sent_bytes=n)
        n = len(one.recv(9000))
        expect(udp_receives=1, udp_received_bytes=n)
    near = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    near.bind(("127.0.0.1", 0))
    for n in range(20):
        expect(udp_loopback_sent_bytes=one.sendto(b"z" * (n + 1), near.getsockname()))
        expect(udp_loopback_received_bytes=len(near.recv(100)))
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    peer, _ = server.accept()
    def send():
        client.sendall(b"w" * {LOOPBACK_BYTES})
        client.close()
    thread = threading.Thread(target=send)
    thread.start()
    while data := peer.recv({BLOCK}):
        expect(tcp_loopback_received_bytes=len(data))
    thread.join()
    expect(tcp_loopback_sent_bytes={LOOPBACK_BYTES})
"""


def _dd(*arguments: str, **expected: int) -> str:
    command = ["dd", "status=none", *arguments]
    return f"""
        subprocess.run({command!r}, check=True, cwd=place)
        expect(**{expected!r})
    """


_EIGHT = {"opens": 1, "writes": 8, "write_bytes": 8 << 20}
_WRITE = ("if=/dev/zero", "of=d", "bs=1M", "count=8", "conv=notrunc")
_READ = ("if=d", "of=/dev/null", "bs=64K", "iflag=direct")
_ALL = ("ext4", "tmpfs", "nfs", "fuse")


def _files(name: str) -> dict[str, int]:
    return dict([FILES[name]]) if name in FILES else {}


def _kinds(name: str) -> tuple[str, ...]:
    """Return where a script runs: overlay has jobs of its own, since it calls ext4 by itself."""
    return ("ext4", "nfs", "fuse") if name == "mmap" else _ALL


SCRIPT_PROGRAMS = [
    KnownProgram(name, SCRIPTS[name], _kinds(name), _files(name)) for name in SCRIPTS
]
OVERLAY_PROGRAMS = [
    KnownProgram(f"overlay {name}", SCRIPTS[name], ("overlay",), _files(name))
    for name in ("read_write", "vectors", "copies", "threads")
]
DD_PROGRAMS = [
    KnownProgram("dd", _dd(*_WRITE, **_EIGHT), ("ext4", "tmpfs", "nfs"), {"d": 8 << 20}),
    KnownProgram("dd direct", _dd(*_WRITE, "oflag=direct", **_EIGHT), ("ext4",), {"d": 8 << 20}),
    # The last read is that of the end.
    KnownProgram(
        "dd direct read",
        _dd(*_READ, opens=1, reads=129, read_bytes=8 << 20),
        ("ext4",),
        {"d": 8 << 20},
    ),
]
FIO_PROGRAMS = [
    KnownProgram(f"fio {name}", fio_script(*options), ("ext4",), {FIO_FILE: 1 << 20})
    for name, options in FIO.items()
]
IDLE = KnownProgram("idle", "", (), {})
NETWORK_LOAD = KnownProgram("network", _LOAD, ("tmpfs",), {})
