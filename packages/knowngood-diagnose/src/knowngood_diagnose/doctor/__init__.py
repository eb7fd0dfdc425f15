"""The doctor: what this machine, environment or image is like, and what a careful colleague would say about it.

In: the file system, NVML, binaries, installed distributions. Out: one table line for each thing that was examined, with
a fix. The probes read, and the pure judges decide. It never changes what it examines.
"""
