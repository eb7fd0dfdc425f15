"""What goes with what: facts read from published artefacts, rules, and the answers of `check` and `pick`."""
