"""Wheels that nobody publishes, compiled once for one GPU architecture and kept in the wheelhouse.

In: a cell that needs a wheel, the package's source, the CUDA toolkit. Out: a wheel with a record of all that shaped it.
Never: compiling twice what one key already names.
"""
