"""Failures: what went wrong in a log, which component is at fault and what fixes it.

In: a log of any size, incidents, rules and facts. Out: the incidents that match, best first, with remedies that were
tried against all other versions in the log.
Never: a guess; without a match the answer is empty.
"""
