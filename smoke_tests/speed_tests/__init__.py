"""The speed suite: training steps of models of real sizes with random weights, each measured in a process of its own.

Self-contained like the smoke suite beside it, whose settings, profiles and NVML it uses: torch and transformers, and
nothing of ``knowngood``. ``python -m speed_tests --help`` lists what it measures; README.md says what comes out.
"""
