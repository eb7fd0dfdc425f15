"""The smoke suite: trains a tiny Qwen2 under every attention setting and proves which kernel ran.

Self-contained: torch, transformers, pytest and the kernel packages of the environment, nothing of
``knowngood``. Run it with ``pytest smoke_tests``; README.md beside this file says what comes out.
"""
