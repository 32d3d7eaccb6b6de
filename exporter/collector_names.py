"""The names of the collectors, by set of names."""

from __future__ import annotations

_NODE = "ccagent.exporter.node_exporter"
_HERE = "ccagent.exporter"
READER = f"{_HERE}.own_metrics:ReaderCollector"

COLLECTORS: dict[str, dict[str, str]] = {
    "ccagent": {
        "own": f"{_HERE}.own_metrics:OwnCollector",
        "jobs": f"{_HERE}.job_metrics:JobCollector",
        "jobio": f"{_HERE}.job_io_metrics:JobIoCollector",
        "gpus": f"{_HERE}.gpu_metrics:GpuCollector",
        "energy": f"{_HERE}.own_metrics:EnergyCollector",
    },
    "node_exporter": {
        "arp": f"{_NODE}.network:read_arp",
        "bonding": f"{_NODE}.network:read_bonding",
        "conntrack": f"{_NODE}.network:read_conntrack",
        "cpu": f"{_NODE}.kernel:CpuCollector",
        "cpufreq": f"{_NODE}.kernel:CpufreqCollector",
        "diskstats": f"{_NODE}.disks:DiskCollector",
        "dmi": f"{_NODE}.system:DmiCollector",
        "edac": f"{_NODE}.hardware:EdacCollector",
        "entropy": f"{_NODE}.system:read_entropy",
        "filefd": f"{_NODE}.system:read_filefd",
        "filesystem": f"{_NODE}.fabrics:FilesystemCollector",
        "hwmon": f"{_NODE}.hardware:HwmonCollector",
        "infiniband": f"{_NODE}.fabrics:read_infiniband",
        "interrupts": f"{_NODE}.kernel:read_interrupts",
        "kernel_hung": f"{_NODE}.system:read_kernel_hung",
        "loadavg": f"{_NODE}.kernel:read_loadavg",
        "mdadm": f"{_NODE}.disks:read_mdadm",
        "meminfo": f"{_NODE}.kernel:read_meminfo",
        "mountstats": f"{_NODE}.nfs:read_mountstats",
        "netclass": f"{_NODE}.network:NetclassCollector",
        "netdev": f"{_NODE}.network:NetdevCollector",
        "netstat": f"{_NODE}.network:read_netstat",
        "nfs": f"{_NODE}.nfs:read_nfs",
        "nfsd": f"{_NODE}.nfs:read_nfsd",
        "os": f"{_NODE}.system:read_os",
        "powersupplyclass": f"{_NODE}.hardware:read_powersupplyclass",
        "pressure": f"{_NODE}.kernel:read_pressure",
        "process": f"{_NODE}.system:read_process",
        "processes": f"{_NODE}.system:read_processes",
        "rapl": f"{_NODE}.hardware:RaplCollector",
        "schedstat": f"{_NODE}.kernel:read_schedstat",
        "selinux": f"{_NODE}.system:read_selinux",
        "sockstat": f"{_NODE}.network:read_sockstat",
        "softirqs": f"{_NODE}.kernel:read_softirqs",
        "softnet": f"{_NODE}.network:read_softnet",
        "stat": f"{_NODE}.kernel:read_stat",
        "systemd": f"{_NODE}.systemd:SystemdCollector",
        "tcpstat": f"{_NODE}.network:read_tcpstat",
        "textfile": f"{_HERE}.textfile:TextfileCollector",
        "thermal_zone": f"{_NODE}.hardware:read_thermal_zone",
        "time": f"{_NODE}.system:read_time",
        "timex": f"{_NODE}.system:read_timex",
        "udp_queues": f"{_NODE}.network:read_udp_queues",
        "uname": f"{_NODE}.system:read_uname",
        "vmstat": f"{_NODE}.kernel:read_vmstat",
    },
    "cgroup_exporter": {"cgroups": f"{_HERE}.job_metrics:CgroupExporterCollector"},
    "dcgm": {"dcgm": f"{_HERE}.gpu_metrics:DcgmCollector"},
    "lustre": {"lustre": f"{_HERE}.lustrefs:LustrefsCollector"},
    "ceems": {
        "ceems": f"{_HERE}.job_metrics:CeemsCollector",
        "ceems-ebpf": f"{_HERE}.job_io_metrics:CeemsIoCollector",
        "ceems-rdma": f"{_HERE}.job_io_metrics:CeemsRdmaCollector",
    },
    "jobstats": {"jobstats": f"{_HERE}.community_metrics:JobstatsCollector"},
    "slurm-job-exporter": {
        "slurm-job-exporter": f"{_HERE}.community_metrics:SlurmJobExporterCollector"
    },
    "omnistat": {"omnistat": f"{_HERE}.community_metrics:OmnistatCollector"},
    "slurm": {
        "slurm": f"{_HERE}.slurm_exporter:SlurmExporterCollector",
        "slurm-fairshare": f"{_HERE}.slurm_controller:FairshareCollector",
        "slurm-licenses": f"{_HERE}.slurm_controller:LicensesCollector",
        "slurm-reservations": f"{_HERE}.slurm_controller:ReservationsCollector",
        "slurm-scheduler": f"{_HERE}.slurm_controller:SchedulerCollector",
    },
}
"""Collectors by set of names: name to `module:object`, a class or a function of the node."""
_ON_DEMAND = frozenset({"interrupts", "mountstats", "processes", "softirqs", "systemd", "tcpstat"})
"""Those that node_exporter leaves out by default, too."""


def list_collectors(name_set: str) -> dict[str, bool]:
    """Return the collectors of a set of names, and whether each is used by default.

    The set `ccagent` has every reader of the agent `metrics`.
    """
    found = {name: name not in _ON_DEMAND for name in COLLECTORS[name_set]}
    if name_set == "ccagent":
        from ccagent.agents.metrics.settings import READERS

        found |= {name: reader.is_exposed for name, reader in READERS.items()}
    return found
