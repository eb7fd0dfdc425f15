"""Wheels that nobody publishes, compiled once for a cell: flash-attn 2 and its like (docs/decisions/0604)."""
