"""Cost of the line protocol: points to text and back.

    python benchmarks/line_protocol.py [--points 200000] [--runs 5]

The points are those of ticks of a node with 256 hardware threads: random floats of 31 metrics, tags
`cluster`, `hostname`, `type` and `type-id`. The ratios are to a plain f-string, which does not
check or escape, and has constant tags.

* Messages: points with shared tags, as agents emit them, up to the bytes of whole messages: with
  existing points, including their creation, and with tags that never repeat.
* Decoder: ccagent.records.line_protocol, a line at a time.

CPU is user and system time, the median of the runs.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from typing import TYPE_CHECKING

from ccagent.machine.node import Node
from ccagent.records import encoding
from ccagent.records.line_protocol import decode_lines
from ccagent.records.points import Point, Tags

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

THREADS = 256
METRICS = 31
NOW = 1_700_000_000 * 10**9
NODE = Node(hostname="c1-1", cluster="fox")


def tag_sets(count: int) -> list[dict[str, str]]:
    """Return the tags of `count` hardware threads."""
    node = {"cluster": "fox", "hostname": "c1-1", "type": "hwthread"}
    return [node | {"type-id": str(number)} for number in range(count)]


def emitted(values: list[float], tags: list[dict[str, str]]) -> Iterator[Point]:
    """Return points as agents emit them, in the same order."""
    seconds = NOW / 10**9
    for index, value in enumerate(values):
        yield Point(f"metric_{index // THREADS % METRICS}", tags[index % len(tags)], value, seconds)


def in_messages(emitted: Iterable[Point]) -> int:
    """Encode points in messages. Return the number of bytes."""
    return sum(len(one.body) for one in encoding.encode(emitted, "line", NODE))


def plain(points: list[Point]) -> int:
    """Encode points with an f-string. Return the number of characters."""
    return sum(
        len(
            f"{one.name},cluster=fox,hostname=c1-1,type=hwthread,"
            f"type-id={one.tags['type-id']} value={one.value} {NOW // 10**9}"
        )
        for one in points
    )


def measure(what: str, count: int, runs: int, work: Callable[[], int], alone: float = 0) -> float:
    """Print the cost of a function for each of `count` points. Return the CPU seconds of a run."""
    times: list[float] = []
    work()
    for _ in range(runs):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    cpu = statistics.median(times)
    print(f"{what:44}{count / cpu:10.0f}{cpu / count * 1e9:8.0f}{cpu / (alone or cpu):7.1f}")
    return cpu


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--points", type=int, default=200_000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    count, runs = options.points, options.runs
    generator = random.Random(1)  # noqa: S311
    values = [generator.random() * 1e4 for _ in range(count)]
    tags = tag_sets(THREADS)
    shared: list[dict[str, str]] = [Tags(each) for each in tags]
    at_hand = list(emitted(values, shared))
    not_shared = list(emitted(values, tag_sets(count)))
    text = "".join(one.encode_line()[1] + "\n" for one in at_hand)
    gc.freeze()
    print(f"{'':44}{'points/s':>10}{'ns':>8}{'ratio':>7}")
    alone = measure("f-string", count, runs, lambda: plain(at_hand))
    measure("messages", count, runs, lambda: in_messages(at_hand), alone)
    measure(
        "making points, messages", count, runs, lambda: in_messages(emitted(values, shared)), alone
    )
    measure(
        "messages, tags that never come again", count, runs, lambda: in_messages(not_shared), alone
    )
    measure("decoder", count, runs, lambda: sum(1 for _ in decode_lines(text)), alone)


if __name__ == "__main__":
    main()
