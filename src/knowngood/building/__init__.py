"""From a cell to its image on one machine: what is planned, done, recorded and verified."""
