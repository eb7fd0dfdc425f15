"""How a CI job gets this program: by pip, at the versions of requirements.lock, from the index of the runner."""

COMMANDS = (
    "python3 -m venv .venv",
    ".venv/bin/python -m pip install --quiet --require-hashes --requirement requirements.lock",
    ".venv/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .",
    'export PATH="$PWD/.venv/bin:$PATH"',
)
"""In a checkout; Python 3.11 or newer is all that a runner needs for them."""
