"""Checks of training over several processes, each against the fp64 reference of ``smoke_tests`` on one.

Self-contained like ``smoke_tests``, whose model, data, reference and outcomes it uses: torch, transformers, and
DeepSpeed or TransformerEngine where they are installed. README.md beside this file says what comes out.
"""
