"""The project: the checkout that holds `matrix.yaml`, `docker/`, `evidence/` and `smoke_tests/`.

In: a folder. Out: its paths, its matrix, checked against the facts, its keys, and the seal of its last release.
Never: a change to the project besides its seal.
"""
