"""Evidence: what runs observed, one file a run, and what follows from all of them for a cell: its tier and its history.

In: the reports of the smoke suite. Out: sealed JSON files, an index over them, tiers, histories.
Never: changing or deleting a file once it is written.
"""
