"""Reports: files for CI systems, the nightly report, and the bisection of a lock.

In: cells, evidence, locks, plans. Out: workflows, nightly reports, the change of a lock that broke a cell.
Never: answers of its own; what a report states comes from `evidence` and `images`.
"""
