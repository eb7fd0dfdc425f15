"""Facts: what published artefacts state about themselves, harvested into `facts/` and read back typed.

In: wheels and sdists of the index, with one reader for each package. Out: `facts/<package>.json`, the atlas,
typed facts. Never: a fact typed in by hand. Third-party code is parsed and never imported or run.
"""
