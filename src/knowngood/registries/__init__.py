"""Registries of images: names, documents, transfers."""
