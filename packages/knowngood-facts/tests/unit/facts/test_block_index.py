"""The index of the words in an atlas file: what it finds, and when it is made again."""

from __future__ import annotations

from knowngood_facts.facts.atlas_file import open_block_index


def test_a_word_is_found_in_its_blocks_and_no_other_word_is(tmp_path):
    file = tmp_path / "lib.atlas"
    file.write_bytes(b"content")
    index = open_block_index(file, "words", lambda: [{"Net", "Network", "a"}, {"Net"}, {"zoo"}])
    assert [index.find_blocks(word) for word in ("Net", "Network", "a", "zoo")] == [[0, 1], [0], [0], [2]]
    assert [index.find_blocks(word) for word in ("", "Ne", "Nets", "zz", "A")] == [[]] * 5


def test_the_index_is_read_again_from_the_cache_until_the_file_changes(tmp_path):
    file = tmp_path / "lib.atlas"
    file.write_bytes(b"content")
    open_block_index(file, "words", lambda: [{"first"}])
    again = open_block_index(file, "words", lambda: [{"second"}])
    assert (again.find_blocks("first"), again.find_blocks("second")) == ([0], [])
    file.write_bytes(b"other content")
    changed = open_block_index(file, "words", lambda: [{"second"}])
    assert (changed.find_blocks("first"), changed.find_blocks("second")) == ([], [0])
