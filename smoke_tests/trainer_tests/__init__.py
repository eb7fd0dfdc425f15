"""Trainers, each taken through its own classes and commands as its users start it.

In a cell with a trainer this folder lies in the smoke suite, as ``smoke_tests.trainers``; README.md says what it asks.
"""
