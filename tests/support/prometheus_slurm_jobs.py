"""CPU time of jobs of a real Slurm: `rate()` in a real Prometheus against the kernel's accounting.

    python -m tests.support.prometheus_slurm_jobs [JOBS [SECONDS]]

As root. It starts a cluster, runs jobs that use the CPU, and prints by how much the rate of each
job's `ccagent_job_cpu_seconds_total` differs from cpuacct.usage (or cpu.stat) over the same time.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.integration.prometheus.conftest import Exporter, Prometheus
from tests.support.running import until
from tests.support.slurm_cluster import SlurmCluster

_ROOT = Path("/sys/fs/cgroup")
_BUSY = "--wrap=while :; do :; done"


def usage(job: int) -> float:
    """Return the CPU time of a job by the kernel's accounting, in seconds."""
    total = 0
    for path in _ROOT.glob(f"cpuacct/slurm*/uid_*/job_{job}/cpuacct.usage"):
        total += int(path.read_text())
    for path in _ROOT.glob(f"system.slice/*slurmstepd.scope/job_{job}/cpu.stat"):
        total += int(path.read_text().split()[1]) * 1000
    return total / 1e9


def main() -> None:
    """Run the cluster, the exporter and Prometheus, and print the differences."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    seconds = int(sys.argv[2]) if len(sys.argv) > 2 else 60
    with tempfile.TemporaryDirectory() as name, SlurmCluster() as cluster:
        directory = Path(name)
        exporter = Exporter(directory)
        exporter.serve('names = ["ccagent"]\ncollectors = ["jobs"]\n')
        target = {"job_name": "a", "static_configs": [{"targets": [f"127.0.0.1:{exporter.port}"]}]}
        server = Prometheus(directory / "prometheus", [target])
        jobs = [
            cluster.submit(
                "alice", "-p", "normal" if n < 16 else "bigmem", "-n1", "--mem=50", _BUSY
            )
            for n in range(count)
        ]
        try:
            until(lambda: all(usage(job) > 0.2 for job in jobs), 120)
            wanted = f"count(ccagent_job_cpu_seconds_total) >= {count}"
            server.wait(wanted, 60)
            before = {job: usage(job) for job in jobs}
            begin = time.time()
            time.sleep(seconds)
            after = {job: usage(job) for job in jobs}
            passed = time.time() - begin
            query = f"rate(ccagent_job_cpu_seconds_total[{seconds}s])"
            rates = {
                int(each["metric"]["jobid"]): float(each["value"][1])
                for each in server.query(query)
            }
            infos = {each["metric"]["jobid"]: each["metric"] for each in
                     server.query("ccagent_job_info")}  # fmt: skip
        finally:
            cluster.run("scancel", *map(str, jobs))
            server.close()
            exporter.kill()
        differences: list[float] = []
        for job in jobs:
            kernel = (after[job] - before[job]) / passed
            difference = rates[job] / kernel - 1
            differences.append(abs(difference))
            info = infos[str(job)]
            print(
                f"job {job}: cpuacct {kernel:.5f}, rate() {rates[job]:.5f} of a CPU:"
                f" {100 * difference:+.2f} %; {info['user']} {info['account']} {info['partition']}"
            )
        print(f"largest difference of {count} jobs: {100 * max(differences):.2f} %")


if __name__ == "__main__":
    main()
