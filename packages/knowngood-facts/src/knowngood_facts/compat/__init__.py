"""Compatibility: what works with what, and why not; rules and incidents as data, and the answers of `check` and `pick`.

In: facts, rules, incidents, cells with their evidence, a query. Out: a verdict with findings, or the best cells.
Never: an answer from anything but that data. A query goes through `query`, `query_placement` and then `check_answer` or
`pick_answer`; what they search is a `universe` of `rule_boxes`.
"""
