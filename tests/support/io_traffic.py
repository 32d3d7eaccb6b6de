"""Programs whose network traffic is known, and comparisons with what was counted."""

from __future__ import annotations

from tests.support.io_jobs import Result, read_network, run_in_job

NETWORK = {
    "tcp": """
        server = socket.create_server(("127.0.0.1", 0))
        def serve():
            peer, _ = server.accept()
            # The bytes that wait are looked at first; all of them are wanted at once.
            peer.recv(10, socket.MSG_PEEK)
            while data := peer.recv(100_000, socket.MSG_WAITALL):
                expect(received_bytes=len(data), receives=1)
        thread = threading.Thread(target=serve)
        thread.start()
        client = socket.create_connection(server.getsockname())
        for size in (1, 1000, 65_537, 2_000_003):
            data = b"x" * size
            while data:
                n = client.send(data)
                expect(sent_bytes=n, sends=1)
                data = data[n:]
        client.close()
        thread.join()
    """,
    "udp": """
        one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        one.bind(("127.0.0.1", 0))
        other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for n in range(50):
            expect(sends=1, sent_bytes=other.sendto(b"y" * (n * 20), one.getsockname()))
            one.recv(4, socket.MSG_PEEK)
            expect(receives=1, received_bytes=len(one.recv(2000)))
    """,
    "udp6": """
        one = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        one.bind(("::", 0))
        port = one.getsockname()[1]
        other = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        for address in ("::1", "::ffff:127.0.0.1"):
            expect(sends=1, sent_bytes=other.sendto(b"z" * 999, (address, port)))
            expect(receives=1, received_bytes=len(one.recv(2000)))
    """,
    "tcp_sendfile": """
        server = socket.create_server(("127.0.0.1", 0))
        def serve():
            peer, _ = server.accept()
            while data := peer.recv(100_000):
                expect(received_bytes=len(data), receives=1)
        thread = threading.Thread(target=serve)
        thread.start()
        client = socket.create_connection(server.getsockname())
        with open("/bin/bash", "rb") as file:
            at = 0
            while at < 500_000:
                n = os.sendfile(client.fileno(), file.fileno(), at, 500_000 - at)
                expect(sent_bytes=n)
                at += n
        client.close()
        thread.join()
    """,
    "tcp_veth": """
        server = elsewhere(socket.create_server, ("10.99.0.2", 0))
        def serve():
            peer, _ = server.accept()
            while data := peer.recv(100_000):
                expect(received_bytes=len(data), receives=1)
        thread = threading.Thread(target=serve)
        thread.start()
        client = socket.create_connection(server.getsockname())
        for size in [100_001] * 50:
            data = b"x" * size
            while data:
                n = client.send(data)
                expect(sent_bytes=n, sends=1)
                data = data[n:]
        client.close()
        thread.join()
    """,
    "udp_veth": """
        one = elsewhere(socket.socket, socket.AF_INET, socket.SOCK_DGRAM)
        one.bind(("10.99.0.2", 0))
        other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for n in range(50):
            expect(sends=1, sent_bytes=other.sendto(b"y" * (1 + n * 100), one.getsockname()))
            expect(receives=1, received_bytes=len(one.recv(9000)))
    """,
}


def compare_network(root: str, name: str) -> Result:
    job, expected = run_in_job(root, "/", NETWORK[name])
    found = {
        f"{key.protocol}{' loopback' if key.is_loopback else ''}": traffic._asdict()
        for key, traffic in read_network().entries.items()
        if key.job == job
    }
    for traffic in found.values():
        del traffic["since"]
    return {"expected": expected, "counted": found}
