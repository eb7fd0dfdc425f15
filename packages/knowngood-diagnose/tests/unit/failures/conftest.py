"""What tests of `knowngood diagnose` share."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from knowngood.cli.main import main


@pytest.fixture(scope="module")
def module_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder that the tests of one file share, so that the incidents are parsed once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def answer(
    module_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], dict[str, Any]]:
    """A function that gives a log to the command and returns its whole JSON answer."""
    monkeypatch.setenv("KNOWNGOOD_CACHE", str(module_cache))

    def diagnose(log: str) -> dict[str, Any]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(log.encode())))
        main(["diagnose", "--json", "-"])
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        return document

    return diagnose


@pytest.fixture
def first_match(answer: Callable[[str], dict[str, Any]]) -> Callable[[str], dict[str, Any]]:
    """A function that gives a log to the command and returns the first match of its JSON answer."""
    return lambda log: answer(log)["matches"][0]
