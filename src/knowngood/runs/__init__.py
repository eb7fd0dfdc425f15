"""What runs saw, at hand: each file of evidence is read once, and an index in the cache folder keeps what follows."""
