"""Registries: names, transfers, and what is published with an image: SBOM, evidence, signatures, audits.

In: proven images and their locks. Out: tags and digests in a registry, documents attached to them, signatures of both.
Never: moving a tag to an image that was not seen green, or overwriting an immutable one.
"""
