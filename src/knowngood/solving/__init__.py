"""What works with what: facts and rules, asked by `check` and `pick`."""
