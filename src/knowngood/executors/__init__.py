"""Executors: where a suite or a build runs. This machine, Slurm, Kubernetes, many builders.

In: jobs and the sections of `fleet.yaml`, or the names of builders. Out: evidence, or images in a registry.
Never: a verdict about an image from a node that failed.
"""
