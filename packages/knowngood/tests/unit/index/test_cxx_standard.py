from __future__ import annotations

import pytest

from knowngood.index.cxx_standard import find_demanded_standard, find_passed_standard, is_build_file


@pytest.mark.parametrize(
    ("header", "standard"),
    [
        ("#if !defined(_MSC_VER) && __cplusplus < 201402L\n#error C++14", 14),  # torch 2.0
        ("#if !defined(_MSC_VER) && __cplusplus < 201703L\n#error C++17", 17),  # torch 2.1 to 2.13
        ("    (!defined(_MSVC_LANG) && __cplusplus < 202002L)\n#error C++20", 20),  # torch 2.15
        ("#pragma once", None),
    ],
)
def test_the_standard_that_a_header_demands(header: str, standard: int | None):
    assert find_demanded_standard(header) == standard


def test_a_flag_of_the_build_is_the_standard_that_it_passes():
    assert find_passed_standard(['flags = ["-O3", "-std=c++17"]', "windows = '/std:c++17'"]) == 17
    assert find_passed_standard(["setup(ext_modules=[CUDAExtension('x', ['x.cu'])])"]) is None


def test_of_a_choice_by_torch_it_is_the_highest():
    # deepspeed 0.19.8, op_builder/builder.py
    choice = "standard = '-std=c++20' if (MAJOR, MINOR) >= (2, 12) else '-std=c++17'"
    assert find_passed_standard([choice]) == 20


def test_a_flag_that_is_added_where_there_is_none_is_no_choice():
    # transformer-engine-torch 2.20.2, build_tools/build_ext.py: torch's BuildExtension has added its own before
    fallback = 'if not any(flag.startswith("-std=") for flag in cflags):\n    cflags.append("-std=c++17")'
    assert find_passed_standard([fallback]) is None


def test_a_file_that_does_not_parse_says_nothing():
    assert find_passed_standard(["print 'python 2'", "cflags = '-std=c++14'"]) == 14


@pytest.mark.parametrize(
    ("member", "decides"),
    [
        ("setup.py", True),
        ("op_builder/builder.py", True),
        ("build_tools/pytorch.py", True),
        ("hopper/setup.py", False),  # a setup of its own, which installing flash-attn does not run
        ("deepspeed/ops/adam/fused_adam.py", False),
    ],
)
def test_the_files_that_decide_how_an_extension_is_compiled(member: str, decides: bool):
    assert is_build_file(member) == decides
