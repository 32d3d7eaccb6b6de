"""The daemon with a scripted clock, agent and receiver: what hangs or fails stalls nobody."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ccagent import registry
from ccagent.daemon.runner import Runner
from ccagent.errors import CcagentError, ConfigurationError, LockedError
from ccagent.log import logger
from ccagent.queue.sink import Sink
from ccagent.service.instance import Lock
from tests.support.scripted import Scene, Script, ScriptedAgent, orders, until


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setitem(registry.AGENTS, "scripted", "tests.support.scripted:ScriptedAgent")
    monkeypatch.setitem(registry.TRANSPORTS, "scripted", "tests.support.scripted:ScriptedTransport")
    orders.reset()
    made = Scene(tmp_path / "outbox")
    yield made
    made.release()


def got(name: str) -> list[int]:
    """Return the numbers of the samples that a receiver has taken."""
    return orders.taken.get(f"scripted:{name}", [])


def has_sent(name: str, *numbers: int) -> Callable[[], bool]:
    """Return a condition: these samples have arrived."""
    return lambda: got(name) == [*numbers]


def has_sampled(number: int) -> Callable[[], bool]:
    """Return a condition: so many samples were begun."""
    return lambda: orders.samples == number


def hang_at(number: int, scene: Scene) -> None:
    """Make the agent hang in one sample, until the scene ends or releases it."""
    event = scene.hold()
    orders.on_sample = lambda n: _wait(event) if n == number else None


def _wait(event: threading.Event) -> None:
    assert event.wait(20)


def change_agent_and_sink(scene: Scene, name: str) -> None:
    scene.table["agents"] = {"scripted": {"every": "1s", "time-limit": f"{len(name) + 5}s"}}
    scene.table["sinks"] = {"one": {"url": f"scripted:{name}"}}


def test_each_tick_is_a_sample(scene: Scene) -> None:
    def script() -> Script:
        for number in range(1, 6):
            yield from scene.tick()
            yield from scene.turns_until(has_sent("a", *range(1, number + 1)))

    scene.play(script())


def test_a_hung_agent_and_a_reload_hold_up_no_message(scene: Scene) -> None:
    """Twenty were sampled and four were sent, until a restart."""
    hang_at(3, scene)

    def script() -> Script:
        for _ in range(2):
            yield from scene.tick()
        yield 1.0
        until(has_sampled(3))
        until(lambda: got("a") == [1, 2])
        change_agent_and_sink(scene, "b")
        yield from scene.reload()
        for number in range(4, 8):
            yield from scene.tick()
            yield from scene.turns_until(has_sent("b", *range(4, number + 1)))
        scene.release()
        yield from scene.turns_until(lambda: got("b") == [4, 5, 6, 7, 3])

    scene.play(script())


@pytest.mark.parametrize("is_configured", [False, True])
def test_a_name_that_a_machine_gets_later_is_that_of_its_records(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, *, is_configured: bool
) -> None:
    named = ["localhost"]
    monkeypatch.setattr("os.uname", lambda: SimpleNamespace(nodename=named[-1]))
    scene.table["hostname"] = "c1" if is_configured else ""

    def script() -> Script:
        yield from scene.tick()
        named.append("c1")
        yield None
        yield from scene.turns_until(lambda: not scene.daemon.is_loading)
        yield None
        yield from scene.tick()
        yield from scene.turns_until(has_sent("a", 1, 2))

    scene.play(script())
    assert orders.hosts == ["c1" if is_configured else "localhost", "c1"]


def test_two_reloads_while_an_agent_hangs(scene: Scene) -> None:
    hang_at(1, scene)

    def script() -> Script:
        yield 1.0
        until(has_sampled(1))
        for name in ("bb", "ccc"):
            change_agent_and_sink(scene, name)
            yield from scene.reload()
        yield from scene.tick()
        yield from scene.turns_until(lambda: got("ccc") == [2])
        scene.release()
        yield from scene.turns_until(lambda: got("ccc") == [2, 1])

    scene.play(script())


def test_a_receiver_that_hangs_while_its_sink_is_replaced(scene: Scene) -> None:
    """Its messages are sent once: by the new sink, if the old one did not succeed."""
    event = scene.hold()
    orders.on_send = lambda url: _wait(event) if url == "scripted:a" else None

    def script() -> Script:
        yield from scene.tick()
        scene.table["sinks"] = {"one": {"url": "scripted:b"}}
        yield from scene.reload()
        yield from scene.tick()
        scene.release()
        yield from scene.turns_until(lambda: sorted(got("a") + got("b")) == [1, 2])

    scene.play(script())


@pytest.mark.parametrize("name", ["bad", "bug"])
def test_a_sink_that_cant_be_built_changes_nothing(
    scene: Scene, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    def script() -> Script:
        scene.table["sinks"] = {
            "one": {"url": "scripted:b"},
            "two": {"url": f"scripted:{name}"},
        }
        yield from scene.reload()
        assert "configuration not read again, the old one stays" in caplog.text
        yield from scene.tick()
        yield from scene.turns_until(lambda: got("a") == [1])

    scene.play(script())
    assert got("b") == []


def test_an_outbox_that_cant_be_opened_changes_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def open_sink(name: str, *others: Any) -> Sink:
        if name == "three":
            raise MemoryError
        return Sink(name, *others)

    def script() -> Script:
        monkeypatch.setattr("ccagent.daemon.agents_and_sinks.Sink", open_sink)
        scene.table["sinks"] = {name: {"url": "scripted:b"} for name in ("one", "two", "three")}
        yield from scene.reload()
        yield from scene.tick()
        yield from scene.turns_until(lambda: got("a") == [1])

    scene.play(script())
    assert "MemoryError" in caplog.text


def test_reloads_leave_no_handler_of_the_log_behind(scene: Scene) -> None:
    """Each reload left one more, which kept a thousand records: 22 after 20 reloads."""
    library = logger.library()
    before = [*library.handlers]

    def script() -> Script:
        scene.table["agents"]["log"] = {"every": "1m"}
        scene.table["sinks"]["lines"] = {"url": "scripted:lines", "format": "line"}
        scene.table["agents"]["scripted"]["sinks"] = ["one"]
        scene.table["agents"]["log"]["sinks"] = ["lines"]
        for _ in range(5):
            yield from scene.reload()
        yield from scene.turns_until(lambda: len(library.handlers) == len(before) + 1)

    scene.play(script())
    assert library.handlers == before


def test_the_agents_of_a_discarded_plan_are_closed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[ScriptedAgent] = []

    def note_close(agent: ScriptedAgent) -> None:
        closed.append(agent)

    def open_sink(*_: Any) -> Sink:
        raise MemoryError

    def script() -> Script:
        monkeypatch.setattr("ccagent.daemon.agents_and_sinks.Sink", open_sink)
        monkeypatch.setattr(ScriptedAgent, "close", note_close)
        change_agent_and_sink(scene, "b")
        yield from scene.reload()
        assert len(closed) == 1
        yield from scene.tick()
        yield from scene.turns_until(lambda: got("a") == [1])

    scene.play(script())


def test_a_removed_sink_drains_its_backlog(scene: Scene) -> None:
    event = scene.hold()
    orders.on_send = lambda _: _wait(event)

    def script() -> Script:
        for _ in (1, 2, 3):
            yield from scene.tick()
        scene.table["sinks"] = {}
        yield from scene.reload()
        event.set()
        yield from scene.turns_until(lambda: got("a") == [1, 2, 3])

    scene.play(script())


def test_a_removed_sink_stays_open_for_an_agent_that_hangs(scene: Scene) -> None:
    hang_at(1, scene)

    def script() -> Script:
        yield 1.0
        until(has_sampled(1))
        scene.table["agents"] = {}
        scene.table["sinks"] = {}
        yield from scene.reload()
        yield 60.0
        scene.release()
        yield from scene.turns_until(lambda: got("a") == [1])

    scene.play(script())


def test_a_sink_that_is_removed_and_comes_back(scene: Scene) -> None:
    event = scene.hold()
    orders.on_send = lambda url: _wait(event) if url == "scripted:a" else None

    def script() -> Script:
        sinks = scene.table["sinks"]
        for _ in (1, 2):
            yield from scene.tick()
        scene.table["sinks"] = {}
        yield from scene.reload()
        scene.table["sinks"] = {**sinks, "one": {"url": "scripted:b"}}
        yield from scene.reload()
        event.set()
        yield from scene.turns_until(lambda: sorted(got("a") + got("b")) == [1, 2])

    scene.play(script())


def test_a_configuration_that_hangs_stalls_nothing(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    def script() -> Script:
        scene.on_load = lambda: _wait(event)
        event = scene.hold()
        scene.daemon.reload()
        for _ in range(1, 15):
            yield from scene.tick()
        assert "the old one stays: not read within 10 s" in caplog.text
        scene.on_load = lambda: None
        scene.table["sinks"] = {"one": {"url": "scripted:b"}}
        yield from scene.reload()
        yield from scene.tick()
        yield from scene.turns_until(lambda: got("b")[-1:] == [15])

    scene.play(script())


def test_a_reload_during_a_reload_is_not_lost(scene: Scene) -> None:
    loads: list[int] = []

    def script() -> Script:
        event = scene.hold()

        def load() -> None:
            loads.append(1)
            _wait(event)

        scene.on_load = load
        scene.daemon.reload()
        yield None
        until(lambda: loads)
        scene.daemon.reload()
        yield None
        event.set()
        yield from scene.turns_until(lambda: len(loads) == 2)

    scene.play(script())


def test_stopping_does_not_wait_for_a_configuration_that_hangs(scene: Scene) -> None:
    event = scene.hold()

    def hang() -> None:
        scene.daemon.stop()
        _wait(event)

    scene.on_load = hang
    scene.daemon.run()
    assert orders.samples == 0


def test_a_configuration_that_hangs_at_boot_is_no_bad_one(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ConfigurationError is exit status 2, after which the unit stays down."""
    monkeypatch.setattr("ccagent.daemon.daemon._LOAD_WITHIN", 0.05)
    event = scene.hold()
    scene.on_load = lambda: _wait(event)
    with pytest.raises(CcagentError, match="configuration: not read within") as caught:
        scene.daemon.run()
    assert not isinstance(caught.value, ConfigurationError)


def test_an_unforeseen_error_does_not_end_the_loop(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watch = Runner.watch
    errors = [ZeroDivisionError("a bug"), MemoryError()]

    def fail_twice(runner: Runner) -> None:
        if errors:
            raise errors.pop()
        watch(runner)

    def script() -> Script:
        yield from scene.tick()
        yield from scene.turns_until(lambda: got("a"))
        assert scene.daemon.status().restarts == 2

    monkeypatch.setattr(Runner, "watch", fail_twice)
    scene.play(script())
    assert caplog.text.count("the scheduling loop failed and is started again") == 2


def test_one_daemon_per_outbox_directory(scene: Scene, tmp_path: Path) -> None:
    def script() -> Script:
        second = Scene(tmp_path / "outbox")
        with pytest.raises(LockedError, match=r"another ccagent holds .*/outbox/daemon\.lock"):
            second.daemon.run()
        elsewhere = Scene(tmp_path / "other")
        elsewhere.play(iter_once())
        in_memory = Scene(tmp_path / "outbox")
        in_memory.table["outbox"]["memory"] = True
        in_memory.play(iter_once())
        yield None

    def iter_once() -> Script:
        yield None

    scene.play(script())
    Scene(tmp_path / "outbox").play(iter_once())


def test_a_reload_to_the_outbox_directory_of_another_daemon_is_refused(
    scene: Scene, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lock = Lock(str(_made(tmp_path / "other") / "daemon.lock"), "outbox.directory")

    def reloading() -> Script:
        scene.table["outbox"] = {"directory": str(tmp_path / "other")}
        yield from scene.reload()
        assert "the old one stays: another ccagent holds" in caplog.text
        yield from scene.tick()
        yield from scene.turns_until(lambda: got("a") == [1])

    scene.play(reloading())
    lock.release()


def _made(path: Path) -> Path:
    path.mkdir()
    return path


def test_a_lock_that_cant_be_made_is_an_error_of_the_configuration(
    scene: Scene, tmp_path: Path
) -> None:
    scene.table["lock-directory"] = str(tmp_path / "none")
    with pytest.raises(ConfigurationError, match=r"lock-directory: .*none/ccagent.lock: No such"):
        scene.daemon.run()


def test_an_outbox_directory_that_cant_be_locked_stops_nothing(
    scene: Scene, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "outbox").write_bytes(b"")

    def script() -> Script:
        yield from scene.tick()
        yield from scene.turns_until(lambda: got("a") == [1])

    with caplog.at_level(logging.ERROR):
        scene.play(script())
    assert "outbox: no lock: another daemon may use it" in caplog.text


def test_an_agent_that_cant_be_ended_keeps_no_sink_from_sending(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scene.table["sinks"] = {name: {"url": f"scripted:{name}"} for name in ("one", "two")}
    ended: list[str] = []
    close, join = Sink.close, Sink.join

    def fail_to_join(runner: Runner, seconds: float) -> None:
        raise RuntimeError(f"{runner.agent.name}: not within {seconds} s")

    def fail_to_close_the_first(sink: Sink) -> None:
        close(sink)
        if sink.name == "one":
            raise OSError(5, "Input/output error")

    def note_join(sink: Sink, seconds: float) -> None:
        join(sink, seconds)
        ended.append(sink.name)

    def script() -> Script:
        yield from scene.tick()

    monkeypatch.setattr(Runner, "join", fail_to_join)
    monkeypatch.setattr(Sink, "close", fail_to_close_the_first)
    monkeypatch.setattr(Sink, "join", note_join)
    scene.play(script())
    assert ended == ["one", "two"]
    assert got("one") == got("two") == [1]
    assert "agent scripted: unforeseen error while it was closed" in caplog.text
    assert "sink one: unforeseen error while it was closed" in caplog.text


_THREADS = """
import sys, threading
from ccagent.machine.own_memory import share_heap
if sys.argv[1] == "shared":
    share_heap()
start = threading.Barrier(9)
def allocate():
    start.wait()
    kept.append([bytes(1000) for _ in range(1000)])
kept = []
threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads:
    thread.start()
start.wait()
for thread in threads:
    thread.join()
# glibc reserves 64 MiB for each further heap.
print(sum("---p" in line and is_large(line) for line in open("/proc/self/maps")))
"""


def test_threads_share_one_heap() -> None:
    import subprocess
    import sys

    size = (
        "def is_large(line):\n"
        "    begin, end = (int(part, 16) for part in line.split()[0].split('-'))\n"
        "    return end - begin > 32 << 20\n"
    )
    found = {
        kind: int(subprocess.check_output([sys.executable, "-c", size + _THREADS, kind]))
        for kind in ("shared", "separate")
    }
    assert found["shared"] == 0
    assert found["separate"] > 0
