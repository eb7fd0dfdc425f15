"""Images: from a lock to a Dockerfile, a plan, a build, a record of its digests, and the check of a second build.

In: locks, records, an engine. Out: images in the engine, `image.json` beside each Dockerfile, results of cells.
Never: anything in an image that its lock, base or recipe did not put there.
"""
