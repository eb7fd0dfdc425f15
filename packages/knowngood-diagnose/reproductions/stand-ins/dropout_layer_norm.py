"""Stands in for flash-attn's extension of the same name, which no wheel has: enough to be imported, and not called."""
