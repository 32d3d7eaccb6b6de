"""The command line: commands, their options, one-shot samples."""
