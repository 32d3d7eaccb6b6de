"""Series that further tags tell apart: mounts and traffic of jobs, parts of an energy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ccagent.config.duration import Duration
from ccagent.records.points import encode_tags
from ccagent.stores.metrics import series_limits
from ccagent.stores.metrics.archive_reader import (
    ArchiveAnswer,
    ArchiveRequest,
    join_scope,
    read_archive,
)
from ccagent.stores.metrics.archive_writer import split_scope
from ccagent.stores.metrics.checkpoints import read_checkpoints
from ccagent.stores.metrics.ingest import LineIngest
from ccagent.stores.metrics.line_keys import (
    MOUNT,
    MetricCatalogue,
    StoredMetric,
    file_name,
    level_path,
    level_tags,
    part_name,
    read_part,
)
from ccagent.stores.metrics.series_limits import PartLimits
from ccagent.stores.metrics.settings import StoredMetricSettings, StoreSettings
from ccagent.stores.metrics.store import MetricStore
from tests.support.written_lines import written_lines
from tests.unit.stores.metrics.support import NOW, ask, write_checkpoint

WILDCARD = {"*": StoredMetric(60, "sum")}


def new_store(metrics: dict[str, StoredMetric] | None = None) -> MetricStore:
    return MetricStore(MetricCatalogue(metrics or WILDCARD), lambda: NOW)


def line(metric: str, value: float, *, time: int = NOW, job: int = 7, **tags: str) -> str:
    scope = {"stype": "job", "stype-id": str(job)} if job else {}
    all_tags = {"cluster": "fox", "hostname": "n1", "type": "node"} | scope | tags
    return f"{metric}{encode_tags(all_tags)} value={value} {time}\n"


def mount(value: float, point: str, *, time: int = NOW, job: int = 7, **tags: str) -> str:
    return line("job_fs_read", value, time=time, job=job, mountpoint=point, **tags)


def values(store: MetricStore, metric: str, **query: Any) -> list[list[float]]:
    (found,) = ask(store, NOW - 90, NOW + 90, {"metric": metric, "host": "n1", **query})
    return [[value for value in one["data"] if value is not None] for one in found]


def test_mounts_of_a_job_are_kept_apart_and_found_by_a_query() -> None:
    store = new_store()
    ingest = LineIngest(store)
    for step in range(3):
        time = NOW - 60 + 60 * step
        body = mount(step, "/home", time=time, fstype="nfs4") + mount(
            10 * step, "/scratch", time=time, fstype="lustre", source="10.0.0.1@o2ib:/scratch"
        )
        assert ingest.write(body.encode()).stored == 2
    job = {"type": "job", "type-ids": ["7"]}
    assert values(store, "job_fs_read", **job) == [[0, 11, 22]]
    ids = ["/home,fstype=nfs4", "/scratch,fstype=lustre,source=10.0.0.1@o2ib:/scratch"]
    parts = {"subtype": "mountpoint", "subtype-ids": ids}
    assert values(store, "job_fs_read", **job, **parts) == [[0, 1, 2], [0, 10, 20]]


def test_parts_of_an_energy_and_traffic_are_kept_apart() -> None:
    store = new_store()
    body = (
        line("job_energy", 1, part="cpu", share="active")
        + line("job_energy", 2, part="cpu", share="idle")
        + line("job_net_sent", 3, layer="socket", proto="tcp", loopback="no")
        + line("job_net_sent", 4, layer="socket", proto="tcp", loopback="yes")
        + line("node_energy", 5, job=0, part="cpu")
        + line("node_energy", 6, job=0, part="gpu")
    )
    assert LineIngest(store).write(body.encode()).stored == 6
    job: dict[str, Any] = {"type": "job", "type-ids": ["7"]}
    shares = {"subtype": "part", "subtype-ids": ["cpu,share=active", "cpu,share=idle"]}
    assert values(store, "job_energy", **job, **shares) == [[1], [2]]
    ways = {"subtype": "layer", "subtype-ids": ["socket,proto=tcp,loopback=yes"]}
    assert values(store, "job_net_sent", **job, **ways) == [[4]]
    assert values(store, "node_energy", type="part", **{"type-ids": ["cpu", "gpu"]}) == [[5], [6]]
    assert values(store, "node_energy") == [[11]]


@pytest.mark.parametrize("metric", ["load", "nfs_read", "job_io_read"])
def test_such_tags_of_other_metrics_are_ignored(metric: str) -> None:
    store = new_store()
    body = line(metric, 1, mountpoint="/a", part="x") + line(metric, 2, mountpoint="/b", part="y")
    assert LineIngest(store).write(body.encode()).stored == 2
    assert values(store, metric, type="job", **{"type-ids": ["7"]}) == [[2]]
    assert store.series == 1


def test_a_site_chooses_tags_of_its_metrics() -> None:
    chosen = {"quota": ("volume",), "job_fs_read": ()}
    store = new_store({name: StoredMetric(60, "sum", tags) for name, tags in chosen.items()})
    body = line("quota", 1, job=0, volume="a") + line("quota", 2, job=0, volume="b")
    LineIngest(store).write((body + mount(3, "/a") + mount(4, "/b")).encode())
    assert values(store, "quota", type="volume", **{"type-ids": ["a", "b"]}) == [[1], [2]]
    assert values(store, "job_fs_read", type="job", **{"type-ids": ["7"]}) == [[4]]


def test_the_reference_ignores_all_further_tags() -> None:
    every = {"*": StoredMetricSettings(frequency=Duration("60s"))}
    for strict, tags in (("reference", ()), ("", MOUNT)):
        settings = StoreSettings(metrics=every, strict=strict)  # type: ignore[arg-type]
        assert settings.catalogue().part_tags("job_fs_read") == tags


def test_a_hostile_name_is_no_other_mount() -> None:
    store = new_store()
    body = (
        mount(1, "/a", fstype="fuse,source=x")
        + mount(2, "/a,fstype=fuse", source="x")
        + mount(3, "/a,fstype=fuse,source=x")
        + mount(4, "/a%2Cfstype=fuse", source="x")
        + mount(5, "/a", fstype="fuse", source="x")
    )
    assert LineIngest(store).write(body.encode()).stored == 5
    assert store.series == 5


@pytest.mark.parametrize(
    "point",
    ["/", "..", "/a b", "/a,b=c", "/%2C", "/" + "x" * 199, "/" + "é" * 199, "/\u202eevil", "job8"],
)
def test_a_mount_of_any_name_has_a_short_level_and_comes_back(point: str, tmp_path: Path) -> None:
    store = new_store()
    # The encoder of the agents refuses marks of direction, other senders do not.
    body = mount(1, point.replace("\u202e", "!"), fstype="fuse.x", source="y" * 200)
    LineIngest(store).write(body.replace("!", "\u202e").encode())
    job = store.root.find(("fox", "n1", "job7"))
    assert job is not None
    (name,) = job.children
    assert len(file_name(name)) <= 255
    assert name.isprintable()
    path = job.children[name].path
    assert level_path(level_tags(path), "") == path
    write_checkpoint(store.root.children["fox"].children["n1"], str(tmp_path), "binary", 0, NOW + 1)
    assert [one.name for one in tmp_path.rglob("*") if one.is_dir()] == ["fox", "n1"]
    again = new_store()
    assert read_checkpoints(again, str(tmp_path), 0) == 1
    assert again.find(path, "job_fs_read") is not None


@pytest.mark.parametrize(
    "path", [(), ("socket1",), ("job7",), ("job7", "mountpoint/home,fstype=nfs4"), ("partcpu",)]
)
def test_the_archive_keeps_the_parts_of_jobs_apart(path: tuple[str, ...]) -> None:
    assert join_scope(*split_scope(path)) == [*path]


def test_names_that_are_cut_off_stay_apart() -> None:
    long = [part_name({"mountpoint": "/" + "é" * 199 + end}, MOUNT) for end in "ab"]
    assert long[0] != long[1]


def test_the_tags_of_a_part_are_read_from_its_name() -> None:
    tags = {"mountpoint": "/a,b%2C=c", "fstype": "fuse.=x", "source": "q"}
    assert read_part(part_name(tags, MOUNT), MOUNT) == tags
    assert read_part("layersocket", MOUNT) is None


def test_a_user_fills_neither_the_store_nor_the_node_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(series_limits, "OF_A_LEVEL", 3)
    store = new_store()
    ingest = LineIngest(store, parts=PartLimits(store, of_node=5))
    with written_lines() as lines:
        for number in range(4):
            body = "".join(mount(1, f"/{number}/{n}") for n in range(10)) + line("load", 1, job=0)
            result = ingest.write(body.encode())
            assert result.bad_count == 0
    level = store.root.find(("fox", "n1", "job7"))
    assert level is not None
    assert list(level.children) == [f"mountpoint/0/{n}" for n in range(3)]
    for job in range(8, 12):
        ingest.write(mount(1, "/home", job=job).encode())
    jobs = store.root.find(("fox", "n1"))
    assert jobs is not None
    assert sorted(jobs.children) == ["job7", "job8", "job9"]
    # What is there goes on, and what is refused is no bad line and costs no search again.
    assert ingest.write((mount(2, "/0/0") + mount(2, "/3/9")).encode()).stored == 1
    assert ingest.counters.bad_lines == 0
    assert ingest.parts.refused == 39
    assert len(lines) == 1
    assert "too many mounts or other parts" in lines[0]


def test_room_comes_back_with_the_retention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series_limits, "OF_A_LEVEL", 1)
    store = new_store()
    ingest = LineIngest(store)
    ingest.write(mount(1, "/a").encode())
    assert ingest.write(mount(1, "/b").encode()).stored == 0
    store.release_before(NOW + 86400 * 40)
    assert ingest.write(mount(1, "/b").encode()).stored == 1


def test_the_archive_has_nothing_of_a_cluster_whose_name_is_too_long(tmp_path: Path) -> None:
    request = ArchiveRequest("x" * 300, 0, 60, [], ["load"], 1000)
    assert read_archive(str(tmp_path), request) == ArchiveAnswer()
