"""The nightly: known good is a statement with a date, and is made again every night."""
