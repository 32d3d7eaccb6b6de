"""Directories of the project that tests read."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The project's own directory."""

TESTS = ROOT / "tests"
DATA = TESTS / "data"
"""Recorded input, and what must come of it."""

MACHINES = TESTS / "machines"
SCHEMA = TESTS / "support" / "sonar-envelopes.schema.json"

ROOMS = ("agents", "controls", "exporter", "machines", "stores", "transports", "views")
"""Folders at the top that are parts of the package."""
