"""The container engine: the one that already answers, else an embedded one in a private folder.

In: the environment of this host. Out: an engine that was checked, a client for it, and the blobs of its images.
Never: changing an engine that it did not start.
"""
