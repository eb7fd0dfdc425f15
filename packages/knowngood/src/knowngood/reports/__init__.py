"""Reports: files for CI systems, and the nightly report.

In: cells, evidence, locks, plans. Out: workflows, nightly reports.
Never: answers of its own; what a report states comes from `evidence` and `images`.
"""
