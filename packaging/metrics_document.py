"""Generator of agents/metrics/metrics.md: the tables of all readers' metrics.

    python packaging/metrics_document.py

rewrites the file. Run it after a change of a reader or metric. A test compares it with the code.
"""

from __future__ import annotations

from pathlib import Path

from ccagent.agents.metrics.settings import READERS

DOCUMENT = Path(__file__).parent.parent / "agents" / "metrics" / "metrics.md"
_HEAD = """\
# The metrics

By reader. Units are base units, before a preset converts them. `on demand`: sent only if `include`
names the metric. A type other than `node` means that parts have values, often besides the node.
`packaging/metrics_document.py` writes this file from the code.
"""
_TAIL = """\
## Commands, files and expressions

Metrics that the configuration adds. Those of commands and files have no unit and the type of the
tag `type`. Expressions have the unit of their table and the type of their operands. See the
[README](README.md#site-metrics).
"""


def render() -> str:
    """Return the document."""
    sections = [_HEAD]
    for name, reader in READERS.items():
        rows = [f"## {name}\n", "| metric | unit | type | | source |", "|---|---|---|---|---|"]
        for metric, what in sorted(reader.metrics.items()):
            demand = "" if what.is_default else "; on demand"
            rows.append(
                f"| `{metric}` | {what.unit} | {what.type} | {what.description}{demand}"
                f" | {what.source} |"
            )
        sections.append("\n".join(rows) + "\n")
    return "\n".join([*sections, _TAIL])


if __name__ == "__main__":
    DOCUMENT.write_text(render(), encoding="utf-8")
