"""Report of a job: how well it used what it was given, and what to change."""
