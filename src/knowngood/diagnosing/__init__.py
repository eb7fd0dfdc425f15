"""What failed, whose fault it is and what ends it, from a log."""
