"""The names and classes of the collectors, by set of names."""

from __future__ import annotations

_NODE = "ccagent.exporter.node_exporter"
_HERE = "ccagent.exporter"

COLLECTORS: dict[str, dict[str, str]] = {
    "ccagent": {
        "own": f"{_HERE}.own_metrics:OwnCollector",
        "jobs": f"{_HERE}.job_metrics:JobCollector",
        "gpus": f"{_HERE}.gpu_metrics:GpuCollector",
        "energy": f"{_HERE}.energy_metrics:EnergyCollector",
        **dict.fromkeys(
            (
                "cpu",
                "memory",
                "pressure",
                "network",
                "infiniband",
                "nfs",
                "disk",
                "filesystem",
                "power",
                "temperature",
                "numastat",
                "beegfs",
                "gpfs",
                "kernel",
            ),
            f"{_HERE}.reader_metrics:ReaderCollector",
        ),
    },
    "node_exporter": {
        "arp": f"{_NODE}.network:ArpCollector",
        "bonding": f"{_NODE}.network:BondingCollector",
        "conntrack": f"{_NODE}.network:ConntrackCollector",
        "cpu": f"{_NODE}.cpu:CpuCollector",
        "cpufreq": f"{_NODE}.cpu:FrequencyCollector",
        "diskstats": f"{_NODE}.disks:DiskCollector",
        "dmi": f"{_NODE}.system:DmiCollector",
        "edac": f"{_NODE}.hardware:EdacCollector",
        "entropy": f"{_NODE}.system:EntropyCollector",
        "filefd": f"{_NODE}.system:FilefdCollector",
        "filesystem": f"{_NODE}.filesystems:FilesystemCollector",
        "hwmon": f"{_NODE}.hardware:HwmonCollector",
        "infiniband": f"{_NODE}.fabrics:InfinibandCollector",
        "loadavg": f"{_NODE}.cpu:LoadCollector",
        "meminfo": f"{_NODE}.memory:MeminfoCollector",
        "netclass": f"{_NODE}.network:NetclassCollector",
        "netdev": f"{_NODE}.network:NetdevCollector",
        "netstat": f"{_NODE}.network:NetstatCollector",
        "nfs": f"{_NODE}.fabrics:NfsCollector",
        "os": f"{_NODE}.system:OsCollector",
        "powersupplyclass": f"{_NODE}.hardware:PowerSupplyCollector",
        "pressure": f"{_NODE}.cpu:PressureCollector",
        "processes": f"{_NODE}.system:ProcessesCollector",
        "rapl": f"{_NODE}.hardware:RaplCollector",
        "schedstat": f"{_NODE}.cpu:SchedstatCollector",
        "selinux": f"{_NODE}.system:SelinuxCollector",
        "sockstat": f"{_NODE}.network:SockstatCollector",
        "softnet": f"{_NODE}.network:SoftnetCollector",
        "stat": f"{_NODE}.cpu:StatCollector",
        "textfile": f"{_NODE}.textfiles:TextfileCollector",
        "thermal_zone": f"{_NODE}.hardware:ThermalCollector",
        "time": f"{_NODE}.system:TimeCollector",
        "timex": f"{_NODE}.system:TimexCollector",
        "udp_queues": f"{_NODE}.network:UdpQueuesCollector",
        "uname": f"{_NODE}.system:UnameCollector",
        "vmstat": f"{_NODE}.memory:VmstatCollector",
    },
    "cgroup_exporter": {"cgroups": f"{_HERE}.cgroup_exporter:CgroupExporterCollector"},
    "dcgm": {"dcgm": f"{_HERE}.dcgm:DcgmCollector"},
    "lustre": {"lustre": f"{_HERE}.lustrefs:LustrefsCollector"},
    "ceems": {"ceems": f"{_HERE}.ceems:CeemsCollector"},
    "slurm": {"slurm": f"{_HERE}.slurm_exporter:SlurmExporterCollector"},
}
"""The collectors of each set of names: name to `module:class`."""

NOT_DEFAULT = frozenset({"processes", "numastat", "beegfs", "gpfs"})
"""Collectors that run only if `collectors` lists them."""


def collector_names() -> list[str]:
    """Return the names of all collectors."""
    return [*dict.fromkeys(name for names in COLLECTORS.values() for name in names)]
