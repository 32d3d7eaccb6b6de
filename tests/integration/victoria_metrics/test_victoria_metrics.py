"""Points in a VictoriaMetrics: written by the HTTP sink and by the daemon, read back the same."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.sonar.agent import SampleAgent, SampleSettings
from ccagent.errors import RetryableError
from ccagent.machine.node import Node
from ccagent.records.encoding import encode
from ccagent.records.line_protocol import Line, decode_lines
from ccagent.records.points import Point
from ccagent.transports.http import HttpSettings, HttpTransport
from tests.support.running import Running, until
from tests.support.tree import TreeNode
from tests.support.victoria_metrics import PRECISION, Points, Series, VictoriaMetrics, series
from tests.unit.records.test_line_protocol import NAMES, WORDS

NOW = 1_700_000_000
NODE = {"cluster": "fox", "hostname": "c1-1", "type": "node"}
DATABASES = (f"test{number}" for number in count())


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VictoriaMetrics]:
    server = VictoriaMetrics(tmp_path_factory.mktemp("victoria-metrics"))
    try:
        yield server
    finally:
        server.stop()


class Store:
    """A database of the server."""

    def __init__(self, server: VictoriaMetrics) -> None:
        self.server = server
        self.name = next(DATABASES)
        self.url = server.url(self.name)

    def write(self, *points: Point) -> None:
        """Write points through the sink `http`."""
        transport = HttpTransport(HttpSettings(url=self.url, format="line"))
        try:
            transport.send(encode(points, "line", Node(hostname="c1-1", cluster="fox")))
        finally:
            transport.close()

    def read(self) -> Points:
        return self.server.read(self.name)


@pytest.fixture
def store(running: VictoriaMetrics) -> Iterator[Store]:
    """An empty database; the server must have been able to read every line."""
    before = running.refused()
    yield Store(running)
    assert running.refused() == before


def of(name: str, **tags: str) -> Series:
    return series(name, (NODE | tags).items())


def about(value: float) -> Any:
    """What is the same number to this server."""
    return pytest.approx(value, rel=PRECISION, abs=0)


def test_points_are_read_back_with_tags_and_seconds(store: Store) -> None:
    store.write(
        Point("cpu_load", NODE, 0.25, NOW + 0.9),
        Point("cpu_load", NODE, 12.5, NOW + 60),
        Point("mem_used", NODE, 7, NOW),
        Point("mem_used", NODE | {"hostname": "c1-2"}, -7, NOW),
        Point("clock", NODE | {"type": "hwthread", "type-id": "17"}, 2400.123, NOW),
    )
    assert store.read() == {
        of("cpu_load"): [(NOW, 0.25), (NOW + 60, 12.5)],
        of("mem_used"): [(NOW, 7)],
        of("mem_used", hostname="c1-2"): [(NOW, -7)],
        of("clock", type="hwthread", **{"type-id": "17"}): [(NOW, 2400.123)],
    }


@pytest.mark.parametrize(
    "value",
    [0, 0.0, -0.0, 1 / 3, 1e-300, -1.5e300, 1.7976931348623157e308, 123_456_789_012.5, 1e22,
     -2.5e-9, 2**53, 2**63 - 1, -(2**63)],
)  # fmt: skip
def test_numbers_of_any_size_are_the_same_numbers(store: Store, value: float) -> None:
    store.write(Point("load", NODE, value, NOW))
    assert store.read() == {of("load"): [(NOW, about(value))]}


@pytest.mark.parametrize(
    "text",
    ["two words", " around ", "a,b", "a=b", "a, b = c", '"quoted"', "it's", "back\\slash",
     "#hash", "{a=b}", "Übergrößenträger", "机器", "🦊", "e\u0301"],
)  # fmt: skip
def test_tags_survive_the_line_protocol(store: Store, text: str) -> None:
    store.write(Point("load", NODE | {"tag": text}, 1.5, NOW))
    store.write(Point("load", NODE | {text: "value"}, 2.5, NOW))
    assert store.read() == {
        of("load", tag=text): [(NOW, 1.5)],
        of("load", **{text: "value"}): [(NOW, 2.5)],
    }


def test_backslashes_together_and_before_a_comma_are_not_for_this_server(
    running: VictoriaMetrics,
) -> None:
    # It takes two for one, where InfluxDB and ClusterCockpit take each for itself.
    store = Store(running)
    before = running.refused()
    store.write(Point("load", NODE | {"tag": "\\\\server"}, 1.5, NOW))
    store.write(Point("load", NODE | {"tag": "back\\,comma"}, 1.5, NOW))
    assert store.read() == {of("load", tag="\\server"): [(NOW, 1.5)]}
    (complaint,) = [each for each in running.refused() if each not in before]
    assert 'missing tag value for "comma"' in complaint


def test_points_of_jobs_are_series_of_their_own(store: Store, tmp_path: Path) -> None:
    node = TreeNode(tmp_path)
    for pid, job in ((42, 7), (43, 7), (44, 8)):
        cgroup = f"0::/system.slice/slurmstepd.scope/job_{job}/step_0/user/task_0\n"
        node.process(pid, cgroup=cgroup)
    points = list(SampleAgent(SampleSettings(), frozenset({"line"})).sample(node))
    numbers = {series(p.name, p.tags.items()): p for p in points if isinstance(p, Point)}
    store.write(*numbers.values())
    found = store.read()
    assert found == {key: [(int(p.time), about(p.value))] for key, p in numbers.items()}
    tags = {"cluster": "test.org", "hostname": "c1-1", "type": "node", "stype": "job"}
    processes = {
        job: found[series("job_processes", (tags | {"stype-id": job}).items())]
        for job in ("7", "8")
    }
    now = int(node.still.time())
    assert processes == {"7": [(now, 2)], "8": [(now, 1)]}


def test_a_tick_of_a_large_node_in_several_messages(store: Store) -> None:
    store.write(
        *(
            Point(f"metric_{metric}", {"hostname": "c1-1", "type-id": str(thread)}, thread / 7, NOW)
            for metric in range(40)
            for thread in range(256)
        )
    )
    found = store.read()
    assert len(found) == 40 * 256
    for key, values in found.items():
        assert values == [(NOW, about(int(dict(key.tags)["type-id"]) / 7))]


PLAIN_WORDS = WORDS.filter(lambda text: "\\" not in text)


@given(
    values=st.lists(
        st.tuples(
            st.dictionaries(NAMES.map(lambda name: f"tag_{name}"), PLAIN_WORDS, max_size=4),
            st.just(0.0) | st.floats(1e-290, 1.7e308) | st.floats(-1.7e308, -1e-290),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_whatever_is_written_is_read_back(
    store: Store, values: list[tuple[dict[str, str], float]]
) -> None:
    # Numbers of one series that differ much lose digits here, hence a series each.
    own = Store(store.server)
    own.write(*(Point(f"m{n}", tags, value, NOW) for n, (tags, value) in enumerate(values)))
    assert own.read() == {
        series(f"m{n}", tags.items()): [(NOW, about(value))]
        for n, (tags, value) in enumerate(values)
    }


def test_a_server_that_is_down_may_come_back(store: Store) -> None:
    there, store.url = store.url, "http://127.0.0.1:1/write"
    with pytest.raises(RetryableError, match="refused"):
        store.write(Point("load", NODE, 1, NOW))
    store.url = there
    store.write(Point("load", NODE, 1, NOW))
    assert store.read() == {of("load"): [(NOW, 1)]}


DAEMON = """
cluster = "fox"
hostname = "c1-1"
[agents.metrics]
every = "1s"
[sinks.store]
url = "URL"
format = "line"
precision = "ns"
[sinks.tree]
url = "dir:OUT"
format = "line"
"""


def test_what_the_daemon_sends_is_what_it_writes_to_files(store: Store, tmp_path: Path) -> None:
    daemon = Running(tmp_path)
    try:
        daemon.start(DAEMON.replace("URL", store.url.replace("precision=s", "precision=ns")))
        until(lambda: len({time for values in store.read().values() for time, _ in values}) >= 3)
        daemon.stop()
    finally:
        daemon.kill()
    written: Points = {}
    for file in sorted(daemon.out.rglob("*")):
        if file.is_file():
            for line in decode_lines(file.read_text(), "s"):
                key, point = _point(line)
                written.setdefault(key, []).append(point)
    found = store.read()
    assert found.keys() == written.keys()
    for key, points in written.items():
        # Those of one series share an exponent: the smaller one is, the fewer digits it has.
        error = PRECISION * max(abs(value) for _, value in points)
        for (time, value), (written_time, written_value) in zip(
            found[key], sorted(points), strict=True
        ):
            assert time == written_time
            assert value == pytest.approx(written_value, rel=PRECISION, abs=error), key
    assert {"cpu_load", "cpu_user", "mem_used"} <= {key.name for key in found}


def _point(line: Line) -> tuple[Series, tuple[float, float]]:
    assert isinstance(line.value, int | float)
    assert line.time is not None
    return series(line.measurement, line.tags.items()), (line.time // 10**9, line.value)
