"""RDMA of jobs: as metrics, in the endpoint under the names of ccagent and CEEMS."""

from __future__ import annotations

import pytest

from ccagent.agents.metrics.readers.base import Count, Gauge, Scope
from ccagent.agents.metrics.readers.infiniband import RdmaReader
from ccagent.exporter import job_io_metrics
from ccagent.exporter.job_io_metrics import CeemsRdmaCollector
from ccagent.exporter.own_metrics import ReaderCollector
from ccagent.machine import rdma
from ccagent.machine.node import Node
from ccagent.machine.rdma import RdmaPart, RdmaUse
from tests.support.scraped import collected, make

PARTS: dict[RdmaPart, RdmaUse] = {
    RdmaPart(12, "mlx5_0", 1): {"queue_pairs": 16, "rx_write_requests": 41, "resp_cqe_error": 2},
    RdmaPart(12, "mlx5_0", 0): {"memory_regions": 2, "memory": 4194304},
}


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    """A machine on which job 12 uses RDMA."""

    def read(_: Node) -> dict[RdmaPart, RdmaUse]:
        return PARTS

    monkeypatch.setattr(rdma, "read_job_rdma", read)
    monkeypatch.setattr(job_io_metrics, "read_job_rdma", read)
    return Node(hostname="n1", cluster="c")


def test_objects_are_gauges_and_requests_are_counters(node: Node) -> None:
    job = Scope("node", "", "job", "12")
    values = [*RdmaReader().read(node)]
    assert Gauge("job_rdma_queue_pairs", 16, job) in values
    assert Gauge("job_rdma_contexts", 0, job) in values
    assert Gauge("job_rdma_memory", 4194304, job) in values
    assert [each for each in values if isinstance(each, Count)] == [
        Count("job_rdma_write_requests", 41, job)
    ]


def test_the_endpoint_has_them_by_job(node: Node) -> None:
    collector = make(ReaderCollector)
    collector.name = "rdma"
    found = collected(collector, node)
    assert found['ccagent_job_rdma_queue_pairs{jobid="12"}'] == 16
    assert found['ccagent_job_rdma_memory_bytes{jobid="12"}'] == 4194304
    assert found['ccagent_job_rdma_write_requests_total{jobid="12"}'] == 41


def test_ceems_has_them_by_device_and_port(node: Node) -> None:
    found = collected(make(CeemsRdmaCollector), node)
    own = 'device="mlx5_0",hostname="n1",manager="slurm",port="{}",uuid="12"'
    assert found[f"ceems_rdma_qps_active{{{own.format(1)}}}"] == 16
    assert found[f"ceems_rdma_mrs_len_active{{{own.format('')}}}"] == 4194304
    assert found[f"ceems_rdma_rx_write_requests{{{own.format(1)}}}"] == 41
    assert found[f"ceems_rdma_resp_cqe_error{{{own.format(1)}}}"] == 2
