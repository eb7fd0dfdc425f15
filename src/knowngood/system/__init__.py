"""Operating systems: the base images, and what Debian packages give them and this host."""
