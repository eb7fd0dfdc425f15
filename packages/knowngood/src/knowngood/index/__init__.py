"""The package index: which files a project has, what their names and metadata say, and ranged reads of large wheels.

In: the names of packages and the index settings of this host. Out: releases, metadata, members of archives.
Never: installing or running anything that it reads.
"""
