"""The commands that this distribution adds, one module each."""
