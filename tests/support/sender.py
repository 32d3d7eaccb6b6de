"""A process that puts numbered messages into an outbox, to be killed and started again by tests.

    python -m tests.support.sender DIRECTORY SINK_TABLE_AS_JSON TOTAL [PAUSE]

DIRECTORY holds the outbox, and `progress`, to which the number of each stored message is appended.
It ends when all `TOTAL` messages are stored and the sink has taken them.
"""

from __future__ import annotations

import json
import os
import sys
import time

from ccagent.config.configuration import OutboxSettings, check_sink
from ccagent.queue.sink import Sink
from ccagent.records.message import Message
from ccagent.transports.base import build_transport


def main() -> None:
    """Go on where the process before was killed."""
    directory, table, total = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
    pause = float(sys.argv[4]) if len(sys.argv) > 4 else 0.0
    settings = check_sink(table, "backend", "test")
    where = OutboxSettings(directory=os.path.join(directory, "outbox"))
    outbox = Sink("backend", settings, build_transport(settings), where)
    with open(os.path.join(directory, "progress"), "a+", encoding="ascii") as progress:
        progress.seek(0)
        for number in range(len(progress.readlines()), total):
            body = json.dumps({"number": number}).encode()
            outbox.put(
                Message("x.org", "c1", "sample", settings.format, 1.0, body, "", f"id-{number}")
            )
            progress.write(f"{number}\n")
            progress.flush()
            time.sleep(pause)
    while not outbox.is_idle:
        time.sleep(0.05)
    outbox.close()
    outbox.join(60)


if __name__ == "__main__":
    main()
