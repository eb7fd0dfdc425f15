"""Known failures as data."""
