"""Every line of a requirements file is a package, says nothing about packages, or is named as unread."""

from __future__ import annotations

import pytest

from knowngood.core.errors import InputError, UsageError
from knowngood_facts.compat.list_formats import parse_requirement_file
from knowngood_facts.compat.requirement_lines import ListOptions, RequirementList


def parse(text: str, **files: str) -> RequirementList:
    others = {name.replace("__", "/") + ".txt": content for name, content in files.items()}
    return parse_requirement_file(
        text, "folder/r.txt", ListOptions(read=others.get, environ={"SUFFIX": "6.0", "TOKEN": "s3cret"})
    )


def texts(requirements: RequirementList) -> list[str]:
    return [f"{item.text}+{item.local}" if item.local else item.text for item in requirements.packages]


def test_a_package_list_of_any_origin():
    text = """\
# a comment
torch==2.6.0 \\
    --hash=sha256:00
transformers==4.57.6  # why
flash_attn @ https://example.org/flash_attn-2.8.3+cu12torch2.6cxx11abiTRUE-cp311-cp311-linux_x86_64.whl
numpy==1.26.4; python_version < "4"
pywin32==1; sys_platform == "win32"
--pre
"""
    requirements = parse(text)
    assert [wanted.name for wanted in requirements.packages] == ["torch", "transformers", "flash-attn", "numpy"]
    assert not any(wanted.explicit for wanted in requirements.packages)
    assert requirements.unread == []


def test_a_defect_in_a_package_list_has_its_line():
    with pytest.raises(UsageError, match=r"^folder/r.txt:2:6: this is not a requirement: Expected"):
        parse("numpy\ntorch=>2\n")


@pytest.mark.parametrize(
    ("line", "package"),
    [
        ("git+https://example.org/huggingface/transformers.git@v4.57.6#egg=transformers", "transformers==4.57.6"),
        ("git+https://example.org/huggingface/transformers@v4.57.6", "transformers==4.57.6"),
        ("transformers @ git+https://example.org/huggingface/transformers@v4.57.6", "transformers==4.57.6"),
        ("transformers[torch] @ git+https://example.org/any/fork@4.57.6", "transformers==4.57.6"),
        ("-e git+https://example.org/huggingface/transformers.git@v4.57.6#egg=transformers", "transformers==4.57.6"),
        ("git+ssh://git@example.org/Dao-AILab/flash-attention.git@v2.8.3", "flash-attn==2.8.3"),
        ("git+https://example.org/Dao-AILab/flash-attention.git@v2.8.3.post2", "flash-attn==2.8.3.post2"),
        ("git+https://example.org/NVIDIA/TransformerEngine.git@release-2.20.2", "transformer-engine==2.20.2"),
        ("git+https://example.org/pytorch/torch@refs/tags/v2.6.0", "torch==2.6.0"),
        ("transformers @ https://example.org/transformers/archive/refs/tags/v4.57.6.tar.gz", "transformers==4.57.6"),
        ("https://example.org/flash_attn-2.8.3.tar.gz", "flash-attn==2.8.3"),
        ("./wheels/torch-2.6.0+cu124-cp311-cp311-linux_x86_64.whl", "torch==2.6.0+cu124"),
        ("torch @ file:///x/torch-2.6.0%2Bcu124-cp311-cp311-linux_x86_64.whl", "torch==2.6.0+cu124"),
    ],
)
def test_a_location_that_names_a_version_is_that_version(line: str, package: str):
    requirements = parse(line)
    assert (texts(requirements), requirements.unread) == ([package], [])


def test_the_extras_of_a_location():
    line = "transformers[vision, torch] @ git+https://example.org/any/fork@4.57.6"
    assert parse(line).packages[0].extras == ("torch", "vision")


@pytest.mark.parametrize(
    ("line", "package", "because"),
    [
        ("git+https://example.org/huggingface/transformers", "transformers", "names no tag"),
        ("git+https://example.org/huggingface/transformers@main#egg=transformers", "transformers", "'main' is no tag"),
        ("transformers @ git+https://example.org/x/transformers@0123456", "transformers", "'0123456' is no tag"),
        ("git+https://example.org/x/transformers@v4.49.0-Gemma-3", "transformers", "is no tag that names a version"),
        ("git+https://example.org/x/repository@v1.2.3#subdirectory=python", None, "no tag"),
        ("-e .", None, "a local path"),
        ("-e ./package", None, "a local path"),
        ("--editable=../package", None, "a local path"),
        ("./package", None, "a local path"),
        ("some/folder", None, "a local path"),
        ("numpy @ file:///croot/numpy_and_numpy_base_1/work", "numpy", "a local path"),
        ("https://example.org/package.zip", None, "this URL names no version"),
        ("-r missing.txt", None, "there is no file folder/missing.txt"),
        ("-c https://example.org/constraints.txt", None, "on another machine"),
        ("torch==${TORCH}", None, "the environment variable TORCH"),
    ],
)
def test_a_line_that_names_no_version_is_named_as_unread(line: str, package: str | None, because: str):
    requirements = parse(f"torch\n{line}\n", folder__c="torch>=2\ndeepspeed==0.16.2")
    [unread] = requirements.unread
    assert because in unread.because
    assert (unread.line, unread.package) == (2, package)
    assert str(unread).startswith("folder/")


def test_other_files_are_followed():
    requirements = parse(
        "-r more/base.txt\n--requirement=again.txt\n-cbounds.txt\ntorch",
        folder__more__base="-r deeper.txt\ntransformers==4.57.6\n-e ./x",
        folder__more__deeper="numpy==1.26.4\n-r base.txt",
        folder__again="-r r.txt\ntrl==0.20.0",
        folder__bounds="torch<2.7",
    )
    assert texts(requirements) == ["numpy==1.26.4", "transformers==4.57.6", "trl==0.20.0", "torch", "torch<2.7"]
    assert [str(line) for line in requirements.unread] == [
        "folder/more/base.txt:3: -e ./x (a local path names no version)"
    ]


@pytest.mark.parametrize("option", ["--index-url", "--extra-index-url", "-i", "--extra-index-url="])
def test_another_index_gives_another_build_of_torch(option: str):
    lines = f"{option} https://example.org/whl/cu126\ntorch==2.11.0\ntransformers==4.57.6"
    assert texts(parse(lines)) == ["torch==2.11.0+cu126", "transformers==4.57.6"]
    assert texts(parse(lines.replace("/whl/cu126", "/simple"))) == ["torch==2.11.0", "transformers==4.57.6"]
    assert texts(parse(lines.replace("2.11.0", "2.11.0+cu130")))[0] == "torch==2.11.0+cu130"


def test_a_constraint_on_a_package_that_the_list_does_not_name_is_kept_apart():
    requirements = parse("torch\n-c c.txt", folder__c="torch>=2\ndeepspeed==0.16.2")
    assert texts(requirements) == ["torch", "torch>=2"]
    assert [item.text for item in requirements.constraints] == ["deepspeed==0.16.2"]
    assert requirements.unread == []


def test_variables_are_replaced_by_their_values_and_not_shown():
    requirements = parse("torch==2.${SUFFIX}\nx @ https://${TOKEN}@example.org/x.zip")
    assert texts(requirements) == ["torch==2.6.0"]
    assert "s3cret" not in str(requirements.unread[0])


def test_every_defect_of_a_file_is_told_with_line_and_column():
    with pytest.raises(InputError) as raised:
        parse("torch==2.6.0\n  numpy >= 1 2\n--frobnicate=1\ntransformers==x.y")
    places = [(problem.line, problem.column) for problem in raised.value.problems]
    assert places == [(2, 14), (3, 1), (4, 13)]
    assert "has no option --frobnicate" in str(raised.value)
    assert raised.value.exit_code == 2


def test_a_line_that_is_continued_has_the_number_of_its_first():
    requirements = parse("torch \\\n >= 2.0 \\\n # a comment \\\nnumpy\n-e .")
    assert texts(requirements) == ["torch>=2.0", "numpy"]
    assert [line.line for line in requirements.unread] == [5]


def test_options_that_name_no_package_are_passed_over_and_told():
    requirements = parse(
        "--pre\n--trusted-host example.org\n--pre\ntorch==2.6.0 --hash=sha256:00 --config-settings='a b'"
    )
    assert texts(requirements) == ["torch==2.6.0"]
    assert requirements.notes == [
        "folder/r.txt: passed over, for they name no package: --pre (line 1), --trusted-host (line 2)"
    ]


def test_a_freeze_states_the_version_of_an_editable_install_in_a_comment():
    text = "# Editable install with no version control (trl==0.20.0.dev0)\n-e /home/me/trl\n-e ./other"
    requirements = parse(text)
    assert texts(requirements) == ["trl==0.20.0.dev0"]
    assert [line.line for line in requirements.unread] == [3]
