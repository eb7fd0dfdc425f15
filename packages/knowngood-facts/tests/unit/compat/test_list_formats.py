"""Every kind of file of requirements is recognized, read for the Python asked for, and told where it is wrong."""

from __future__ import annotations

import json

import pytest

from knowngood.core.errors import InputError, UsageError
from knowngood_facts.compat.list_formats import parse_requirement_file, recognize_format
from knowngood_facts.compat.requirement_lines import ListOptions, RequirementList

PROJECT = """\
[project]
name = "my-trainer"
dependencies = [
  "torch==2.6.0",
  "transformers[torch]>=4.40 ; python_version >= '3.10'",
  "pywin32 ; sys_platform == 'win32'",
  "trl @ git+https://example.org/huggingface/trl@v0.20.0",
]

[project.optional-dependencies]
train = ["my_trainer[fast]", "deepspeed==0.16.2"]
fast = ["flash-attn==2.8.3"]

[dependency-groups]
test = ["pytest>=8", {include-group = "lint"}]
lint = ["ruff==0.8.0"]
"""
UV_LOCK = """\
version = 1
requires-python = ">=3.10"

[[package]]
name = "my-trainer"
version = "0.1.0"
source = { virtual = "." }
dependencies = [
    { name = "numpy", version = "1.26.4", source = { registry = "x" }, marker = "python_version < '3.12'" },
    { name = "numpy", version = "2.2.0", source = { registry = "x" }, marker = "python_version >= '3.12'" },
    { name = "transformers", extra = ["torch"] },
]
[package.optional-dependencies]
fast = [{ name = "flash-attn" }]
[package.dev-dependencies]
dev = [{ name = "pytest" }]

[[package]]
name = "numpy"
version = "1.26.4"
source = { registry = "x" }
[[package]]
name = "numpy"
version = "2.2.0"
source = { registry = "x" }
[[package]]
name = "transformers"
version = "4.57.6"
source = { registry = "x" }
[package.optional-dependencies]
torch = [{ name = "torch" }]
[[package]]
name = "torch"
version = "2.6.0+cu126"
source = { registry = "y" }
[[package]]
name = "flash-attn"
version = "2.8.3"
source = { registry = "x" }
[[package]]
name = "pytest"
version = "8.3.0"
source = { registry = "x" }
[[package]]
name = "forgotten"
version = "1.0"
source = { registry = "x" }
"""
PYLOCK = """\
lock-version = "1.0"
created-by = "hand"
requires-python = ">=3.10"
extras = ["fast"]
dependency-groups = ["test"]

[[packages]]
name = "torch"
version = "2.6.0"
[packages.sdist]
url = "https://example.org/torch-2.6.0.tar.gz"
hashes = {sha256 = "00"}

[[packages]]
name = "flash-attn"
version = "2.8.3"
marker = "'fast' in extras"
[packages.sdist]
url = "https://example.org/flash_attn-2.8.3.tar.gz"
hashes = {sha256 = "00"}

[[packages]]
name = "tomli"
version = "2.0.0"
marker = "python_version < '3.11'"
[packages.sdist]
url = "https://example.org/tomli-2.0.0.tar.gz"
hashes = {sha256 = "00"}

[[packages]]
name = "mine"
[packages.directory]
path = "."
"""
CONDA = """\
name: trainer
channels: [conda-forge]
dependencies:
  - python=3.12
  - pip
  - conda-forge::pytorch=2.5.1
  - pip:
    - torch==2.6.0  # the wheel
    - numpy==1.26.4; python_version < "3.12"
    - --pre
    - -r more.txt
"""


def parse(text: str, origin: str, **options: object) -> RequirementList:
    return parse_requirement_file(text, origin, ListOptions(**options))  # type: ignore[arg-type]


def texts(requirements: RequirementList) -> list[str]:
    return [f"{item.text}+{item.local}" if item.local else item.text for item in requirements.packages]


@pytest.mark.parametrize(
    ("origin", "text", "kind"),
    [
        ("requirements.txt", "torch", "requirements"),
        ("requirements-dev.in", "", "requirements"),
        ("requirements.lock", "torch==2.6.0 \\\n    --hash=sha256:00\n", "requirements"),
        ("a/pyproject.toml", "", "pyproject.toml"),
        ("uv.lock", "", "uv.lock"),
        ("pylock.gpu.toml", "", "pylock.toml"),
        ("environment-gpu.yaml", "", "environment.yml"),
        ("stdin", PROJECT, "pyproject.toml"),
        ("stdin", UV_LOCK, "uv.lock"),
        ("stdin", PYLOCK, "pylock.toml"),
        ("stdin", CONDA, "environment.yml"),
        ("stdin", "Package    Version Editable project location\n---------- -------\ntorch      2.6.0\n", "pip list"),
        ("stdin", '[{"name": "torch", "version": "2.6.0"}]', "pip list --format json"),
        ("stdin", "# packages in environment at /x:\n#\n# Name  Version  Build  Channel\n", "conda list"),
        ("stdin", "torch==2.6.0\n[not] a table", "requirements"),
    ],
)
def test_a_file_is_recognized_by_its_name_or_its_content(origin: str, text: str, kind: str):
    assert recognize_format(origin, text) == kind


@pytest.mark.parametrize(
    ("origin", "text", "reason"),
    [
        ("poetry.lock", "", "poetry export"),
        ("stdin", '[[package]]\nname = "x"\n[metadata]\ncontent-hash = "00"\n', "poetry.lock is not read"),
        ("setup.py", "import x", "it is a program"),
        ("settings.toml", "a = 1", "neither its name nor its content"),
        ("jobs.yml", "jobs: []", "neither its name nor its content"),
    ],
)
def test_a_kind_that_is_not_read_is_refused_with_what_to_give_instead(origin: str, text: str, reason: str):
    with pytest.raises(UsageError, match=reason):
        parse(text, origin)


def test_the_dependencies_of_a_project():
    requirements = parse(PROJECT, "pyproject.toml")
    assert texts(requirements) == ["torch==2.6.0", "transformers>=4.40", "trl==0.20.0"]
    assert requirements.packages[1].extras == ("torch",)
    assert requirements.notes == [
        "pyproject.toml: the extras train, fast were not asked for (--extra NAME)",
        "pyproject.toml: the groups test, lint were not asked for (--group NAME)",
    ]


def test_one_extra_that_was_left_out_is_named_in_the_singular():
    text = '[project]\nname = "x"\ndependencies = []\n[project.optional-dependencies]\nfast = ["triton==3.3.0"]\n'
    assert parse(text, "pyproject.toml").notes == ["pyproject.toml: the extra fast was not asked for (--extra NAME)"]


def test_the_extras_and_groups_of_a_project_with_what_they_include():
    requirements = parse(PROJECT, "pyproject.toml", extras=("train",), groups=("test",))
    assert texts(requirements)[3:] == ["deepspeed==0.16.2", "flash-attn==2.8.3", "pytest>=8", "ruff==0.8.0"]
    with pytest.raises(UsageError, match="has no extra 'trian'; the nearest is train"):
        parse(PROJECT, "pyproject.toml", extras=("trian",))
    with pytest.raises(UsageError, match="has no group 'tests'; the nearest is test"):
        parse(PROJECT, "pyproject.toml", groups=("tests",))
    with pytest.raises(UsageError, match="--extra and --group are for"):
        parse("torch", "requirements.txt", extras=("train",))


def test_groups_that_include_each_other_are_refused():
    text = '[dependency-groups]\none = [{include-group = "two"}]\ntwo = [{include-group = "one"}]\n'
    with pytest.raises(InputError, match=r"pyproject.toml:2:1: the group one includes itself \(one > two > one\)"):
        parse(text, "pyproject.toml", groups=("one",))


def test_a_defect_of_a_project_has_its_line_and_column():
    with pytest.raises(InputError, match=r"^pyproject.toml:4:10: this is not a requirement: Expected"):
        parse(PROJECT.replace("torch==2.6.0", "torch =>2"), "pyproject.toml")
    with pytest.raises(InputError, match=r"^pyproject.toml:2:\d+: not TOML"):
        parse("[project]\nname = x\n", "pyproject.toml")
    with pytest.raises(InputError, match=r"^pyproject.toml:3:1: dependencies is a list"):
        parse('[project]\nname = "x"\ndependencies = "torch"\n', "pyproject.toml")


def test_markers_of_a_project_hold_for_the_python_that_is_asked_for():
    text = "[project]\ndependencies = [\"a==1; python_version < '3.12'\", \"b==1; python_version >= '3.12'\"]\n"
    assert texts(parse(text, "pyproject.toml", python="3.10")) == ["a==1"]
    assert texts(parse(text, "pyproject.toml", python="3.13")) == ["b==1"]
    newer = parse(text + 'requires-python = ">=3.12"\n', "pyproject.toml")
    assert (texts(newer), newer.python) == (["b==1"], "3.12")
    assert "the answer is for 3.12" in newer.notes[0]
    older = parse(text + 'requires-python = ">=3.12"\n', "pyproject.toml", python="3.10")
    assert "which excludes 3.10" in older.notes[0]


def test_dynamic_dependencies_are_those_of_the_files_that_setuptools_reads():
    text = '[project]\nname = "x"\ndynamic = ["dependencies"]\n'
    files = '[tool.setuptools.dynamic]\ndependencies = {file = ["r.txt"]}\n'
    assert texts(parse(text + files, "pyproject.toml", read={"r.txt": "torch==2.6.0"}.get)) == ["torch==2.6.0"]
    assert "a build of the project decides" in parse(text, "pyproject.toml").unread[0].because


def test_the_index_of_a_project_gives_the_build_of_torch():
    text = """
[project]
dependencies = ["torch==2.6.0"]
[tool.uv]
constraint-dependencies = ["numpy<2"]
[tool.uv.sources]
torch = { index = "whl" }
[[tool.uv.index]]
name = "whl"
url = "https://example.org/whl/cu126"
"""
    requirements = parse(text, "pyproject.toml")
    assert texts(requirements) == ["torch==2.6.0+cu126"]
    assert [item.text for item in requirements.constraints] == ["numpy<2"]


def test_tables_of_poetry_are_refused_with_the_command_that_says_the_same():
    text = '[project]\nname = "x"\n[tool.poetry.dependencies]\ntorch = "2.6.0"\n'
    with pytest.raises(UsageError, match="poetry export"):
        parse(text, "pyproject.toml")
    both = parse(text.replace("[tool", 'dependencies = ["torch==2.6.0"]\n[tool'), "pyproject.toml")
    assert texts(both) == ["torch==2.6.0"]


def test_a_lock_of_uv_is_followed_from_its_projects():
    assert texts(parse(UV_LOCK, "uv.lock")) == ["numpy==1.26.4", "torch==2.6.0+cu126", "transformers==4.57.6"]
    assert texts(parse(UV_LOCK, "uv.lock", python="3.13"))[0] == "numpy==2.2.0"
    more = texts(parse(UV_LOCK, "uv.lock", extras=("fast",), groups=("dev",)))
    assert {"flash-attn==2.8.3", "pytest==8.3.0"} < set(more)
    with pytest.raises(UsageError, match="has no group 'dve'; the nearest is dev"):
        parse(UV_LOCK, "uv.lock", groups=("dve",))


def test_a_pylock_is_read_for_the_python_extras_and_groups():
    requirements = parse(PYLOCK, "pylock.toml")
    assert texts(requirements) == ["torch==2.6.0"]
    assert (requirements.unread[0].package, requirements.unread[0].line) == ("mine", 31)
    assert texts(parse(PYLOCK, "pylock.toml", extras=("fast",), python="3.10")) == [
        "torch==2.6.0",
        "flash-attn==2.8.3",
        "tomli==2.0.0",
    ]
    with pytest.raises(UsageError, match=r"not a pylock\.toml as PEP 751 says"):
        parse('lock-version = "1.0"\n', "pylock.toml")


def test_the_pip_part_of_a_conda_environment():
    requirements = parse(CONDA, "environment.yml", read={"more.txt": "trl==0.20.0"}.get)
    assert texts(requirements) == ["torch==2.6.0", "trl==0.20.0"]
    assert requirements.python == "3.12"
    assert [(line.line, line.package) for line in requirements.unread] == [(6, "pytorch")]
    assert texts(parse(CONDA, "environment.yml", python="3.11"))[1] == "numpy==1.26.4"
    with pytest.raises(InputError, match=r"^environment.yml:8:12: this is not a requirement: Expected"):
        parse(CONDA.replace("torch==2.6.0", "torch=>2.6.0"), "environment.yml")


@pytest.mark.parametrize(
    "text",
    [
        "Package Version\n------- -------\ntorch 2.6.0+cu124\nodd   1.0-dirty-x\n",
        json.dumps([{"name": "torch", "version": "2.6.0+cu124"}, {"name": "odd", "version": "1.0-dirty-x"}]),
        json.dumps(
            {
                "installed": [
                    {"metadata": {"name": n, "version": v}}
                    for n, v in (("torch", "2.6.0+cu124"), ("odd", "1.0-dirty-x"))
                ]
            }
        ),
        "# packages in /x:\n#\n# Name Version Build Channel\ntorch 2.6.0+cu124 pypi_0 pypi\nodd 1.0-dirty-x p pypi\n",
    ],
)
def test_listings_of_what_is_installed(text: str):
    requirements = parse(text, "stdin")
    assert texts(requirements) == ["torch==2.6.0+cu124"]
    assert [line.package for line in requirements.unread] == ["odd"]
