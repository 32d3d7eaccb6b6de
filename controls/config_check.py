"""The check of a configuration with overrides. `config_class` runs it in a separate process."""

from __future__ import annotations

import sys


def main() -> None:
    """Check the file argv[1] with the overrides argv[2] (JSON). Status 2 and a line on error."""
    import msgspec

    from ccagent.config.configuration import check_files
    from ccagent.config.files import read_files
    from ccagent.controls.config_keys import with_overrides
    from ccagent.errors import ConfigurationError

    place, text = sys.argv[1:3]
    try:
        files = read_files(place)
        check_files(files, with_overrides(files.table, msgspec.json.decode(text)))
    except ConfigurationError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
