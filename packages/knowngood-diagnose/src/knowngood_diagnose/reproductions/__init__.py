"""Reproductions: known failures made to happen, and their cures tried.

In: `reproductions/<name>/` and the incident it belongs to. Out: an observation of each side, stored as evidence. It
never states a result for a side that was not run.
"""
