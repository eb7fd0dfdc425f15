"""Reports: the site and the docs pages, files for CI systems, the nightly report, and the bisection of a lock.

In: cells, evidence, facts, incidents, plans. Out: pages, pictures, `catalog.json`, workflows, nightly reports.
Never: answers of its own; what pages state comes from `compat` and `evidence`.
"""
