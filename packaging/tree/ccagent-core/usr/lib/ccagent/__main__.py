"""Starts ccagent from this directory, which /usr/bin/ccagent runs."""

import os
import sys

# What a site adds: plug-ins, amdsmi, confluent-kafka. The last to be searched.
_ADDED = "/usr/local/lib/ccagent"

if os.path.isdir(_ADDED):
    sys.path.append(_ADDED)

from ccagent.__main__ import main  # noqa: E402 - the path comes first

main()
