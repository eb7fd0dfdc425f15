"""The container engine: found, started, asked."""
