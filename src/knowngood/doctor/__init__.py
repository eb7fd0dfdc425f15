"""What a careful colleague would check on a machine: `seen` is described at the edges, judged by pure functions.

Edges: `elf`, `environment`, `nvml`, `machine`, `labels`. Pure: `library`, `linking`, `seen`, `line`, and the judges.
"""
