"""Known failures made to happen, and their cures."""
