"""How one package uses another, judged on every pair of their releases."""
