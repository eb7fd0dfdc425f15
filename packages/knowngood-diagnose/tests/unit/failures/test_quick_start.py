"""That the modules of `knowngood diagnose` do at their import only what every log needs."""

from __future__ import annotations

import json
import subprocess
import sys

IMPORT_ALL = """
import importlib, json, pkgutil, re, sys
compiled, compile_pattern = [], re.compile
def note(*arguments):
    compiled.append(sys._getframe(1).f_globals["__name__"])
    return compile_pattern(*arguments)
re.compile = note
import knowngood_diagnose.cli.diagnose, knowngood_diagnose.failures
for module in pkgutil.walk_packages(knowngood_diagnose.failures.__path__, "knowngood_diagnose.failures."):
    importlib.import_module(module.name)
print(json.dumps([name for name in compiled if name.startswith("knowngood")]))
"""
IMPORT_KNOWN = """
import json, sys
from knowngood_diagnose.failures import diagnosis, known_failures, remedy_trial
print(json.dumps(sorted(sys.modules)))
"""
SLOW = {"difflib", "pydantic", "yaml", "zstandard", "knowngood_diagnose.failures.machines.memory_numbers"}
"""What takes 2 to 20 ms to be imported, and is not needed for a failure that an incident knows."""


def _printed(code: str) -> list[str]:
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    names: list[str] = json.loads(run.stdout)
    return names


def test_no_module_compiles_a_pattern_when_it_is_imported():
    assert _printed(IMPORT_ALL) == []


def test_a_known_failure_needs_no_slow_module():
    assert SLOW & {*_printed(IMPORT_KNOWN)} == set()
