"""The project: the checkout that holds `matrix.yaml`, `docker/`, `evidence/` and `smoke_tests/`.

In: a folder. Out: its paths, and its matrix, checked against the facts.
Never: a change to the project.
"""
