"""Reports about facts: the nightly check of new releases, and the pages of compatibility and of broken pairs.

In: facts, rules, the releases on the package index. Out: pages, and what the nightly report says of the day.
Never: answers of its own; what a page states comes from `compat` and `facts`.
"""
