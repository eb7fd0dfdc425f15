"""The cache of what YAML texts mean."""

from __future__ import annotations

import pytest

from knowngood.core import yaml_document
from knowngood.core.errors import InputError
from knowngood.core.local_files import cache_folder
from knowngood.core.yaml_cache import YamlCache

TEXT = "a: [1, {b: 3.10}]\nc:\n"


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that were really parsed."""
    texts: list[str] = []
    parse = yaml_document.parse_yaml_data

    def note(text: str, file: str) -> object:
        texts.append(text)
        return parse(text, file)

    monkeypatch.setattr(yaml_document, "parse_yaml_data", note)
    return texts


def fill_cache(*texts: str) -> None:
    cache = YamlCache()
    for text in texts:
        cache.parse(text, "a.yaml")
    cache.save()


def test_a_text_is_parsed_once(parsed: list[str]):
    fill_cache(TEXT)
    cache = YamlCache()
    assert cache.parse(TEXT, "a.yaml") == {"a": ["1", {"b": "3.10"}], "c": ""}
    assert parsed == [TEXT]


def test_a_changed_text_is_parsed_again(parsed: list[str]):
    fill_cache(TEXT)
    assert YamlCache().parse(TEXT.replace("3.10", "3.11"), "a.yaml")["a"][1] == {"b": "3.11"}
    assert len(parsed) == 2


def test_data_that_a_caller_changes_is_not_what_the_next_one_gets():
    fill_cache(TEXT)
    cache = YamlCache()
    cache.parse(TEXT, "a.yaml")["a"].clear()
    cache.save()
    assert YamlCache().parse(TEXT, "a.yaml")["a"] == ["1", {"b": "3.10"}]


@pytest.mark.parametrize("content", ["", "[]", "[1", '{"x": 1}', "\udcff"])
def test_a_damaged_cache_is_made_again(content: str, parsed: list[str]):
    fill_cache(TEXT)
    (cache_folder() / "yaml.json").write_text(content, encoding="utf-8", errors="surrogateescape")
    fill_cache(TEXT)
    fill_cache(TEXT)
    assert parsed == [TEXT, TEXT]


def test_a_damaged_entry_is_parsed_again(parsed: list[str]):
    fill_cache(TEXT)
    path = cache_folder() / "yaml.json"
    path.write_text(path.read_text("utf-8").replace("3.10", '3.10"'), encoding="utf-8")
    assert YamlCache().parse(TEXT, "a.yaml")["c"] == ""
    assert len(parsed) == 2


def test_a_text_with_a_defect_is_refused_each_time():
    for _ in range(2):
        cache = YamlCache()
        with pytest.raises(InputError, match=r"a\.yaml"):
            cache.parse("a: [1", "a.yaml")
        cache.save()


def test_a_cache_that_is_not_used_keeps_nothing(parsed: list[str]):
    fill_cache(TEXT)
    assert YamlCache(used=False).parse(TEXT, "a.yaml")["c"] == ""
    assert len(parsed) == 2
