"""Locks: the hash-pinned distributions of a cell, its layers, and the wheelhouse for wheels that no index has.

In: what `matrix.yaml` asks of a cell. Out: `docker/cells/<id>/`, `docker/layers/<name>/`, exports for other tools.
Never: building or running anything.
"""
