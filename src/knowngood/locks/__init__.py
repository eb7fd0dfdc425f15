"""What a cell installs: resolved, pinned, kept, told to other tools."""
