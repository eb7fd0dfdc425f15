"""Base images: operating systems bootstrapped from pinned Debian packages.

In: a base of `matrix.yaml` and its `packages.lock`. Out: an OCI layout with the same bytes every time.
Never: installing a package on the host.
"""
