"""Builds on many builders, which share their layers through a registry."""
