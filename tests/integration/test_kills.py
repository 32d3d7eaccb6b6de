"""Nothing lost while both the agent and the server are killed with -9, again and again."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from tests.killing import send_while_killed
from tests.nats_server import Bench

TOTAL = 10_000
KILLS = 20


def test_a_stream_of_nats_holds_each_message_once(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        server = bench.serve()
        server.add_stream("x.org.>")
        starts = 1

        def restart() -> None:
            nonlocal starts
            server.kill()
            server.start()
            starts += 1

        table = {"url": server.url, "jetstream": True, "time-limit": "2s"}
        send_while_killed(tmp_path, table, TOTAL, kills=KILLS, pause=0.0005, meanwhile=restart)

        found = Counter(json.loads(body)["number"] for _, body, _ in server.stored())
        assert found == Counter(range(TOTAL))
        assert starts == KILLS + 1
