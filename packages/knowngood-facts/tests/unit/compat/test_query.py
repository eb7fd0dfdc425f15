from __future__ import annotations

import pytest

from knowngood.core import attention
from knowngood.core.errors import UsageError
from knowngood.index import wheel_tags
from knowngood_facts.compat import query


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
    assert query.parse_requirement('torch==2.6.0; python_version < "3.13"', python="3.13t") is None
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


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("driver", "R535", "535"),
        ("driver", "535.x", "535"),
        ("driver", "535.104.05", "535.104.05"),
        ("python", "3.13t", "3.13t"),
        ("python", "3.11.4", "3.11.4"),
    ],
)
def test_a_version_of_an_axis(name: str, text: str, value: str):
    assert query.parse_axis_version(name, text) == value


@pytest.mark.parametrize(("name", "text"), [("driver", "new"), ("driver", "535t"), ("python", "t"), ("glibc", "2.17t")])
def test_what_is_no_version_of_an_axis(name: str, text: str):
    with pytest.raises(UsageError, match="one is written like"):
        query.parse_axis_version(name, text)


def test_the_extras_of_a_requirement():
    wanted = [
        query.parse_requirement(text) for text in ("transformers[Torch,vision_x]==4.57.6", "trl[peft]>=0.9", "torch")
    ]
    assert [package.extras for package in wanted if package] == [("torch", "vision-x"), ("peft",), ()]


def test_an_attention_setting_by_any_of_its_names():
    assert [
        attention.parse_attention(name) for name in ("FA2", "flash_attention_2", "flex_attention", "sdpa_math")
    ] == [
        "fa2",
        "fa2",
        "flex",
        "sdpa-math",
    ]
    with pytest.raises(UsageError, match="nearest is fa"):
        attention.parse_attention("fa5")


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


def test_a_marker_that_is_nested_too_deeply_is_refused_at_once():
    for depth, fits in ((10, True), (21, False), (100_000, False)):
        text = "torch; " + "(" * depth + "python_version > '3'" + ")" * depth
        if fits:
            assert query.parse_requirement(text).name == "torch"
        else:
            with pytest.raises(UsageError, match="more than 20 parentheses"):
                query.parse_requirement(text)
