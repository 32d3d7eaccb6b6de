"""Start of ccagent from this directory. /usr/bin/ccagent runs this file."""

import os
import sys

# Modules of ccagent-store and ccagent-web, then additional modules of a site: plug-ins,
# amdsmi, confluent-kafka.
for _added in ("/usr/lib/ccagent-store", "/usr/lib/ccagent-web", "/usr/local/lib/ccagent"):
    if os.path.isdir(_added):
        sys.path.append(_added)

from ccagent.__main__ import main  # noqa: E402 - the path comes first

main()
