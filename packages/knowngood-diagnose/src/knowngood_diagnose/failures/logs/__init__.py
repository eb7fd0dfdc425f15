"""What a log says: its errors, tracebacks and versions, and whether it tells of a failure at all."""
