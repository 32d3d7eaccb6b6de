"""RAPL zones below /sys/class/powercap: their names, and who may read them."""

from __future__ import annotations

import re

POWERCAP = "sys/class/powercap"

# intel-rapl-mmio repeats the same packages. The kernel lists the zones of a package
# (intel-rapl:0:1) beside the package (intel-rapl:0).
ZONE = re.compile(r"((?:intel|amd)-rapl:[0-9]{1,6})(?::[0-9]{1,6})?", re.ASCII)

# Since Linux 5.10 (CVE-2020-8694).
FIX = (
    "let the agent's group read them with a udev rule,"
    ' SUBSYSTEM=="powercap", ACTION=="add", KERNEL=="*-rapl:*",'
    ' RUN+="/bin/chgrp ccagent %S%p/energy_uj", RUN+="/bin/chmod 0440 %S%p/energy_uj",'
    " or give its service CapabilityBoundingSet= and AmbientCapabilities=CAP_DAC_READ_SEARCH"
)
"""How to permit that the counters are read; `ccagent doctor` shows it too."""
