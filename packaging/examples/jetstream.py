"""Viewer of messages in NATS, for a first try.

    python jetstream.py add STREAM SUBJECTS     # a stream of JetStream that keeps these subjects
    python jetstream.py show STREAM             # what it holds, and the last of each subject
    python jetstream.py watch SUBJECTS          # messages as they arrive, until interrupted

It needs nats-py, which is installed with ccagent. NATS_URL: a server other than the one on this
machine. NATS's program `nats` has more functions: `nats stream add`, `nats stream view`, `nats
sub`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import Any, cast

import nats


async def add(client: Any, stream: str, *subjects: str) -> None:
    """Create the stream, on the disk, if it does not exist."""
    await client.jetstream().add_stream(name=stream, subjects=list(subjects))


async def show(client: Any, stream: str) -> None:
    """Print the messages in the stream."""
    jetstream = client.jetstream()
    state = (await jetstream.stream_info(stream, subjects_filter=">")).state
    print(f"{stream}: {state.messages} messages, {state.bytes} bytes")
    for subject in sorted(state.subjects or {}):
        last = await jetstream.get_last_msg(stream, subject)
        print(f"{subject}: {last.data.decode()}")


async def watch(client: Any, subjects: str) -> None:
    """Print messages as they arrive."""
    subscription = await client.subscribe(subjects)
    async for message in subscription.messages:
        print(f"{message.subject}: {message.data.decode()}", flush=True)


async def main(command: str, *arguments: str) -> None:
    """Connect, and run the command."""
    client = await cast("Any", nats).connect(os.environ.get("NATS_URL", "nats://127.0.0.1:4222"))
    try:
        await {"add": add, "show": show, "watch": watch}[command](client, *arguments)
    finally:
        await client.close()


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in {"add", "show", "watch"}:
        sys.exit(__doc__)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(*sys.argv[1:]))
