"""Files that packages ship: man pages, completions, a configuration file."""
