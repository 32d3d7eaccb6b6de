"""How much the long tests try: a part in each run, everything with HYPOTHESIS_PROFILE=nightly."""

from __future__ import annotations

import os

IS_NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
