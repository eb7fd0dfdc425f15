"""The model suite: a small copy of any causal model, trained one step under every attention setting.

Self-contained like the smoke suite, of whose modules it uses several: it needs torch and transformers (4.57 or
newer), nothing of ``knowngood``. ``python -m model_tests --help`` says how to run it; README.md what comes out.
"""
