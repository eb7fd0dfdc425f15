import pytest
from hypothesis import given
from hypothesis import strategies as st

import harvest_registry
from knowngood.index.gpu_code import FatbinScanner, GpuCode, parse_fatbin, parse_nvcc_flags, sort_architectures

ONE = harvest_registry.fatbin((2, 80, 0x2011), (2, 90, 0x102011), (1, 90, 0x11))
FLAGS = b"-gencode;arch=compute_80,code=sm_80;-gencode;arch=compute_90,code=compute_90\0"


def test_entries_tell_machine_code_from_ptx_and_sm_90a_from_sm_90():
    assert parse_fatbin(ONE) == GpuCode(sass=frozenset({"80", "90a"}), ptx=frozenset({"90"}))


@pytest.mark.parametrize("less", [1, 24, 40])
def test_entry_that_reaches_too_far_is_an_error(less):
    short = bytearray(ONE)
    short[8:16] = (len(ONE) - 16 - less).to_bytes(8, "little")
    with pytest.raises(ValueError, match="beyond its end"):
        parse_fatbin(bytes(short))


def test_flags_name_the_architectures_that_nvcc_built():
    assert parse_nvcc_flags(FLAGS) == GpuCode(sass=frozenset({"80"}), ptx=frozenset({"90"}))


@given(st.integers(min_value=1, max_value=5000))
def test_pieces_of_any_size_give_the_same(size):
    library = b"\x7fELF" + FLAGS + bytes(20_000) + ONE * 3 + b"rest"
    scanner = FatbinScanner(enough=3)
    for start in range(0, len(library), size):
        if scanner.feed(library[start : start + size]):
            break
    assert scanner.fatbins == [parse_fatbin(ONE)] * 3
    assert scanner.flags == parse_nvcc_flags(FLAGS)


def test_stops_after_enough_fatbins():
    scanner = FatbinScanner(enough=2)
    assert scanner.feed(FLAGS + bytes(20_000) + ONE * 5)
    assert len(scanner.fatbins) == 2


def test_the_magic_number_by_chance_is_skipped():
    scanner = FatbinScanner(enough=1)
    chance = ONE[:8] + (1 << 40).to_bytes(8, "little") + bytes(64)
    scanner.feed(FLAGS + bytes(20_000) + chance + ONE)
    assert scanner.fatbins == [parse_fatbin(ONE)]


@given(st.binary(max_size=400))
def test_garbage_is_no_error(garbage):
    scanner = FatbinScanner(enough=1)
    scanner.feed(ONE[:8] + garbage)


def test_order_is_by_number():
    assert sort_architectures(frozenset({"120", "90a", "75", "90", "100"})) == ["75", "90", "90a", "100", "120"]
