"""What CI systems run: the plan as their pipelines, and this project's own workflows. All of it pure but `diff`."""
