"""Errors about names: which package owns what is missing, in which releases it is there, and which change brings it."""
