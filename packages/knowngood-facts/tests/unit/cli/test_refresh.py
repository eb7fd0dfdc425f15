"""`--refresh`: what an answer lacks is read from an index on the loopback interface, and kept for the user."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import stamina

import harvest_registry
from harvest_registry import metadata, wheel
from knowngood.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[harvest_registry.Registry]:
    stamina.set_testing(True, attempts=2)
    monkeypatch.setenv("KNOWNGOOD_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)  # outside of a checkout
    with harvest_registry.serve() as served:
        monkeypatch.setenv("UV_DEFAULT_INDEX", served.url)
        yield served
    stamina.set_testing(False)


def add_release(registry: harvest_registry.Registry, name: str, version: str, *requires: str, source: str = "") -> None:
    folder = f"{name}-{version}.dist-info"
    registry.files[f"{name}-{version}-py3-none-any.whl"] = wheel(
        {f"{folder}/METADATA": metadata(name, version, *requires), f"{name}/__init__.py": source.encode()}
    )


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("command", ["check", "pick"])
def test_what_a_request_names_and_what_that_needs_is_read_and_kept(
    command: str, registry: harvest_registry.Registry, capsys: pytest.CaptureFixture[str]
):
    add_release(registry, "zzapp", "1.0", "zzlib>=2", "torch>=2.6")
    add_release(registry, "zzlib", "2.0")
    question = (command, "torch==2.6.0", "zzapp==1.0")
    code, before = ask(capsys, *question)
    assert (code, [part["package"] for part in before["unread"]]) == (3, ["zzapp"])
    code, document = ask(capsys, *question, "--refresh")
    assert (code, "unread" in document) == (0, False)
    code, document = ask(capsys, *question)  # without the index: it is kept
    assert (code, "unread" in document) == (0, False)
    assert ask(capsys, command, "torch==2.5.1", "zzapp==1.0")[0] == 1


def test_a_release_newer_than_the_facts_is_read_beside_those_that_are_known(
    registry: harvest_registry.Registry, capsys: pytest.CaptureFixture[str]
):
    add_release(registry, "einops", "99.0", "torch<2")
    question = ("check", "torch==2.6.0", "einops==99.0", "--python", "3.11")
    assert ask(capsys, *question)[1]["verdict"] == "unknown"
    code, document = ask(capsys, *question, "--refresh")
    assert (code, document["findings"][0]["id"]) == (1, "requires:einops:torch")
    assert ask(capsys, "check", "torch==2.6.0", "einops==0.8.0")[0] == 0


@pytest.mark.parametrize(
    ("name", "version", "requires"),
    [
        pytest.param("peft", "0.3.0", "transformers", id="older than what the atlas begins with"),
        pytest.param("zzapp", "1.0", "transformers", id="outside of the atlas"),
    ],
)
def test_the_names_of_a_release_are_read_and_judged_beside_what_it_may_use(
    name: str, version: str, requires: str, registry: harvest_registry.Registry, capsys: pytest.CaptureFixture[str]
):
    add_release(registry, name, version, requires, source="from transformers import top_k_top_p_filtering")
    registry.uploaded["zzapp-1.0-py3-none-any.whl"] = "2023-10-01T00:00:00Z"
    question = ("check", f"{name}=={version}", "transformers==4.57.6", "--python", "3.11")
    code, document = ask(capsys, *question)
    assert (code, {part["package"] for part in document["unread"] if part["matters"]}) == (3, {name})
    code, document = ask(capsys, *question, "--refresh")
    assert (code, document["findings"][0]["id"]) == (1, f"uses:{name}:transformers")
    assert document["suggestion"]["changes"] == {"transformers": "4.38.2"}
    registry.files.clear()
    assert ask(capsys, *question)[0] == 1  # without the index: it is kept
    assert ask(capsys, "check", f"{name}=={version}", "transformers==4.38.2", "--python", "3.11")[0] == 0


@pytest.mark.usefixtures("registry")
def test_without_an_index_it_says_so_and_answers_from_what_it_has(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    code, document = ask(capsys, "check", "torch==2.6.0", "zzapp==1.0", "--refresh")
    assert (code, document["covered_verdict"]) == (3, "compatible")
    assert any("does not answer for zzapp" in note for note in document["notes"])
