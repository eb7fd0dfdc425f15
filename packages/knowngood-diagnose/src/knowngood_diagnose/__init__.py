"""What failed and why: logs, machines and environments, and programs that make known failures happen."""
