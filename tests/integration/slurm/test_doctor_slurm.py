"""`ccagent doctor` on the master of a real Slurm."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.support.running import CCAGENT
from tests.support.slurm_cluster import SlurmCluster


def test_a_master_can_work(slurm: SlurmCluster, tmp_path: Path) -> None:
    file = tmp_path / "ccagent.toml"
    file.write_text(
        'cluster = "fox"\nhostname = "c1-1.fox"\n'
        '[agents.jobs]\nevery = "1m"\n[agents.cluster]\nevery = "1h"\n'
    )
    command = slurm.enter(*CCAGENT, "doctor", "--json", "--config", str(file))
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    found = {each["subject"]: each for each in json.loads(result.stdout)}
    for program in ("sacct", "squeue", "sinfo", "scontrol"):
        assert found[program]["found"].startswith("slurm")
    for question in ("accounting of Slurm", "controller of Slurm"):
        assert found[question]["state"] == "good"
    assert found["controller of Slurm"]["found"].endswith(" nodes")
    assert found["name in Slurm"]["found"] == "Slurm has c1-1, records have c1-1.fox"
    assert result.returncode == 0
