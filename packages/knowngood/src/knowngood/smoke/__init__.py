"""Smoke runs: the suite started in an image or an environment, and the outcomes predicted for a cell.

In: a cell, its image or an environment, `smoke_tests/predictions.yaml`. Out: the suite's report as evidence.
Never: judging a check itself; the suite does, and its bytes are what evidence names.
"""
