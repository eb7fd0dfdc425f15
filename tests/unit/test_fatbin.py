import harvest_registry
import pytest
from hypothesis import given
from hypothesis import strategies as st

from knowngood.fatbin import Code, Scanner, entries, flags_code, in_order

ONE = harvest_registry.fatbin((2, 80, 0x2011), (2, 90, 0x102011), (1, 90, 0x11))
FLAGS = b"-gencode;arch=compute_80,code=sm_80;-gencode;arch=compute_90,code=compute_90\0"


def test_entries_tell_machine_code_from_ptx_and_sm_90a_from_sm_90():
    assert entries(ONE) == Code(sass=frozenset({"80", "90a"}), ptx=frozenset({"90"}))


@pytest.mark.parametrize("less", [1, 24, 40])
def test_entry_that_reaches_too_far_is_an_error(less):
    short = bytearray(ONE)
    short[8:16] = (len(ONE) - 16 - less).to_bytes(8, "little")
    with pytest.raises(ValueError, match="beyond its end"):
        entries(bytes(short))


def test_flags_name_what_nvcc_was_told():
    assert flags_code(FLAGS) == Code(sass=frozenset({"80"}), ptx=frozenset({"90"}))


@given(st.integers(min_value=1, max_value=5000))
def test_pieces_of_any_size_give_the_same(size):
    library = b"\x7fELF" + FLAGS + bytes(20_000) + ONE * 3 + b"rest"
    scanner = Scanner(enough=3)
    for start in range(0, len(library), size):
        if scanner.feed(library[start : start + size]):
            break
    assert scanner.fatbins == [entries(ONE)] * 3
    assert scanner.flags == flags_code(FLAGS)


def test_stops_when_enough_was_seen():
    scanner = Scanner(enough=2)
    assert scanner.feed(FLAGS + bytes(20_000) + ONE * 5)
    assert len(scanner.fatbins) == 2


def test_magic_by_chance_is_passed_over():
    scanner = Scanner(enough=1)
    chance = ONE[:8] + (1 << 40).to_bytes(8, "little") + bytes(64)
    scanner.feed(FLAGS + bytes(20_000) + chance + ONE)
    assert scanner.fatbins == [entries(ONE)]


@given(st.binary(max_size=400))
def test_garbage_is_no_error(garbage):
    scanner = Scanner(enough=1)
    scanner.feed(ONE[:8] + garbage)


def test_order_is_by_number():
    assert in_order(frozenset({"120", "90a", "75", "90", "100"})) == ["75", "90", "90a", "100", "120"]
