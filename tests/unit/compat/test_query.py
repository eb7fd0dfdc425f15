from __future__ import annotations

import pytest

from knowngood.compat import query
from knowngood.core.errors import UsageError
from knowngood.index import wheel_tags


@pytest.mark.parametrize(
    ("text", "name", "specifier", "local"),
    [
        ("torch==2.6.0", "torch", "==2.6.0", None),
        ("Flash_Attn == 2.8.3", "flash-attn", "==2.8.3", None),
        ("torch==2.6.0+cu124", "torch", "==2.6.0", "cu124"),
        ("flash-attn==4.0.0b36", "flash-attn-4", "==4.0.0b36", None),
        ("flash-attn=none", "flash-attn", "none", None),
        ("transformers>=4.40,<5", "transformers", "<5,>=4.40", None),
        ("torch", "torch", "", None),
        ("torch==2.6.*", "torch", "==2.6.*", None),
        ("torch[opt]==2.6.0", "torch", "==2.6.0", None),
        ("torch @ file:///x/torch-2.6.0%2Bcu124-cp311-cp311-linux_x86_64.whl", "torch", "==2.6.0", "cu124"),
    ],
)
def test_a_requirement(text: str, name: str, specifier: str, local: str | None):
    wanted = query.parse_requirement(text)
    assert wanted is not None
    assert (wanted.name, wanted.specifier, wanted.local) == (name, specifier, local)


@pytest.mark.parametrize("text", ["torch=>2", "torch==", "==2.0", "torch==2.6..0", "torch==latest", "x.whl"])
def test_a_malformed_requirement_is_refused(text: str):
    with pytest.raises(UsageError):
        query.parse_requirement(text)


def test_a_marker_that_excludes_linux_leaves_a_package_out():
    assert query.parse_requirement('torch==2.6.0; sys_platform == "win32"') is None
    assert query.parse_requirement('torch==2.6.0; python_version < "3.9"', python="3.11") is None
    assert query.parse_requirement('torch==2.6.0; sys_platform == "linux"') is not None


def test_the_name_of_a_wheel_says_what_it_was_built_for():
    wanted = query.parse_requirement("dist/flash_attn-2.8.3+cu12torch2.6cxx11abiFALSE-cp311-cp311-linux_x86_64.whl")
    assert wanted is not None
    assert (wanted.name, wanted.version) == ("flash-attn", "2.8.3")
    assert wanted.wheel is not None
    assert wanted.wheel.constants() == {
        "wheel.cuda": "12",
        "wheel.torch": "2.6",
        "wheel.cxx11abi": "false",
        "wheel.python": "3.11",
    }


def test_a_local_version_says_what_the_wheel_was_built_for():
    assert wheel_tags.build_from_local_version("flash-attn", "cu124torch2.5cxx11abitrue") == wheel_tags.WheelBuild(
        cuda="12.4", torch="2.5", cxx11abi="true"
    )
    assert wheel_tags.build_from_local_version("flash-attn", "cu118pt210") == wheel_tags.WheelBuild(
        cuda="11.8", torch="2.10"
    )
    assert wheel_tags.build_from_local_version("xformers", "cu124") == wheel_tags.WheelBuild(cuda="12.4")
    assert wheel_tags.build_from_local_version("torch", "cu124") is None  # it names the build itself
    assert wheel_tags.build_from_local_version("xformers", None) is None


def test_a_stable_abi_and_a_platform_tag():
    _, _, tags = wheel_tags.parse_wheel_name("triton-3.9.0-cp312-abi3-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl")
    assert tags.abi3
    assert tags.constants()["wheel.python_from"] == "3.12"
    assert tags.glibc == "2.27"
    assert "wheel.python" not in tags.constants()


def test_a_package_list_of_any_origin():
    text = """\
# a comment
torch==2.6.0 \\
    --hash=sha256:00
transformers==4.57.6  # why
-e git+https://example.org/x#egg=x
--extra-index-url https://example.org
flash_attn @ https://example.org/flash_attn-2.8.3+cu12torch2.6cxx11abiTRUE-cp311-cp311-linux_x86_64.whl
numpy==1.26.4; python_version < "4"
"""
    found = query.parse_package_list(text, "r.txt")
    assert [wanted.name for wanted in found] == ["torch", "transformers", "flash-attn", "numpy"]
    assert not any(wanted.explicit for wanted in found)


def test_a_defect_in_a_package_list_has_its_line():
    with pytest.raises(UsageError, match=r"^r.txt:2: 'torch=>2'"):
        query.parse_package_list("numpy\ntorch=>2\n", "r.txt")


def test_an_attention_setting_by_any_of_its_names():
    assert [query.parse_attention(name) for name in ("FA2", "flash_attention_2", "flex_attention", "sdpa_math")] == [
        "fa2",
        "fa2",
        "flex",
        "sdpa-math",
    ]
    with pytest.raises(UsageError, match="nearest is fa"):
        query.parse_attention("fa5")


@pytest.mark.parametrize("text", ["dtype", "=bf16", "dtype="])
def test_a_malformed_condition_of_use(text: str):
    with pytest.raises(UsageError, match="KEY=VALUE"):
        query.parse_use_condition(text)


@pytest.mark.parametrize(
    "item", [[], {"gpus": "V100"}, {"packages": []}, {"driver": "new"}, {"packages": {"torch": "x"}}]
)
def test_a_malformed_query_of_a_batch(item: object):
    with pytest.raises(UsageError):
        query.query_from_document(item)
