"""File systems, network and energy of a job on its page."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ccagent.records.points import encode_tags
from ccagent.stores.metrics.ingest import LineIngest
from ccagent.stores.metrics.job_table import StoredJob
from ccagent.stores.metrics.usage.job_energy import end_of_values
from ccagent.views.web.data.jobs import read_parts
from ccagent.views.web.pages.job_plots import describe_energy
from tests.support.page_site import PageSite
from tests.support.simulated_jobs import DemoJob

HOSTILE = "/<script>alert(1)</script>,fstype=x"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[PageSite]:
    job = DemoJob(name="a", user="alice", account="phys", began=1, nodes=2)
    found = PageSite(tmp_path, nodes=4, seconds=3600, jobs=[job])
    yield found
    found.close()


def send(site: PageSite, metric: str, values: list[float], node: int = 0, **tags: str) -> None:
    """Write values of the job, the last one now."""
    (placed,) = site.cluster.jobs
    scope = {"cluster": "demo", "hostname": placed.parts[node].node.name, "type": "node"}
    scope |= {"stype": "job", "stype-id": str(placed.number)}
    first = site.now - 60 * (len(values) - 1)
    body = "".join(
        f"{metric}{encode_tags(scope | tags)} value={value} {first + 60 * number}\n"
        for number, value in enumerate(values)
    )
    assert LineIngest(site.store).write(body.encode()).stored == len(values)


def page(site: PageSite) -> str:
    (placed,) = site.cluster.jobs
    return site.ask(f"/cluster/demo/job/{placed.number}").text


def rows(text: str, label: str) -> list[list[str]]:
    table = text.partition(f'aria-label="{label}"')[2].partition("</table>")[0]
    found = re.findall(r"<tr>(.*?)</tr>", table)[1:]
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in found]
    return [[re.sub(r"</?bdi>", "", cell) for cell in row] for row in cells]


def test_without_such_values_the_page_is_silent(site: PageSite) -> None:
    text = page(site)
    assert "File systems" not in text
    assert "Network of the job" not in text
    assert "by its share of cores" in text


def test_mounts_of_all_nodes_are_a_table(site: PageSite) -> None:
    home = {"mountpoint": "/home", "fstype": "nfs4", "source": "nfs1:/home"}
    scratch = {"mountpoint": HOSTILE, "fstype": "fuse.\u00e9"}
    for node in (0, 1):
        send(site, "job_fs_read", [1024.0] * 10, node, **home)
        send(site, "job_fs_metadata", [2.0] * 10, node, **home)
    send(site, "job_fs_write", [1024.0 * 1024] * 10, 0, **scratch)
    text = page(site)
    assert "<script>alert" not in text
    assert rows(text, "File systems of the job") == [
        ["/&lt;script&gt;alert(1)&lt;/script&gt;,fstype=x", "fuse.\u00e9", "0 B", "600 MiB", "0",
         "0", "0", ""],
        ["/home", "nfs4", "1.17 MiB", "0 B", "0", "0", "2,400", "nfs1:/home"],
    ]  # fmt: skip
    assert "mounts  /&lt;script&gt;" in text  # in the report as text
    assert "Amounts over all nodes" in text


def test_the_network_of_a_job_is_a_table(site: PageSite) -> None:
    send(site, "job_net_sent", [1024.0] * 5, layer="socket", proto="tcp", loopback="no")
    send(site, "job_net_received", [4096.0] * 5, layer="socket", proto="udp", loopback="yes")
    text = page(site)
    assert "File systems" not in text
    assert "Over 1 of 2 nodes" in text
    assert rows(text, "Network of the job") == [
        ["UDP within a node", "1.17 MiB", "0 B"],
        ["TCP", "0 B", "300 KiB"],
    ]


def test_many_mounts_are_cut_short(site: PageSite) -> None:
    for number in range(23):
        send(site, "job_fs_read", [1.0], mountpoint=f"/{number}", fstype="fuse")
    text = page(site)
    assert len(rows(text, "File systems of the job")) == 20
    assert "And 3 more." in text


def test_measured_energy_replaces_the_estimate(site: PageSite) -> None:
    for node in (0, 1):
        send(site, "job_energy", [1.8e6, 3.6e6], node, part="cpu", share="active")
        send(site, "job_energy", [0.0, 1.8e6], node, part="cpu", share="idle")
        send(site, "job_energy_gpu_active", [7.2e6, 9e6], node)
        send(site, "job_energy_idle_known", [0.0, 1.0], node)
    text = page(site)
    assert "8 kWh: processors 3 kWh, GPUs 5 kWh; 1 kWh of it idle" in text
    assert "by its share of cores" not in text


def test_energy_of_some_nodes_says_so(site: PageSite) -> None:
    send(site, "job_energy", [3.6e6], part="other", share="active")
    assert "1 kWh: other 1 kWh; of 1 of 2 nodes" in page(site)


@pytest.mark.parametrize(
    ("values", "before", "joules"),
    [
        ([10, 20, 30], 0, 30),
        # The agent has begun anew, without a file that keeps its state.
        ([10, 20, 5, 6], 0, 26),
        # An earlier run of the same number.
        ([110, 120, 130], 2, 10),
        ([110, 5, 6], 1, 6),
    ],
)
def test_counters_of_energy_grow(
    site: PageSite, values: list[float], before: int, joules: float
) -> None:
    send(site, "job_energy", values, part="cpu", share="active")
    start = site.now - 60 * (len(values) - before - 1) - 1
    job = stored(site, start=start, stop=None)
    found = asyncio.run(read_parts(site.store, job, site.now + 1))
    assert found.joules == {("cpu", "active"): joules}
    assert describe_energy(found, 1).startswith("0.")


def stored(site: PageSite, *, start: int, stop: int | None) -> StoredJob:
    (placed,) = site.cluster.jobs
    (job,) = site.table.find("demo", str(placed.number))
    return job._replace(start=start, stop=stop)


def test_values_that_come_after_the_end_are_of_that_run(site: PageSite) -> None:
    run = stored(site, start=1000, stop=2000)
    assert end_of_values(run, [run], 9000) == 2600
    assert end_of_values(run, [run, run._replace(start=2300, stop=None)], 9000) == 2300
    assert end_of_values(run._replace(stop=None), [run], 9000) == 9001
