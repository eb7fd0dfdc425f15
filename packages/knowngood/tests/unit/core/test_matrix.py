"""matrix.yaml: `schema` (its shape) and `matrix` (its sense), through the one door that both have."""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knowngood.core import matrix
from knowngood.core.cell import parse_cell
from knowngood.core.errors import InputError
from knowngood.core.matrix import MatrixEntry
from knowngood.core.value_problems import hint_nearest_cell
from samples import FA0, FA2, FA4, KNOWLEDGE, MATRIX, parsed, with_


def refused(*changes: tuple[str, str], text: str = MATRIX) -> list[str]:
    with pytest.raises(InputError) as caught:
        parsed(with_(*changes, text=text))
    assert caught.value.exit_code == 2
    return str(caught.value).splitlines()


def test_an_item_stands_for_the_product_of_its_lists():
    matrix = parsed()
    assert list(matrix.entries) == [FA4, FA2, FA0]
    assert matrix.entries[FA4].extras == ("pytest",)
    assert matrix.layers["python"] == ("*",)


def test_every_axis_may_hold_a_list():
    text = with_(("gpu: sm_90\n", "gpu: [sm_90, sm_100]\n"), ("transformers: 5.17.0", "transformers: [4.57.6, 5.17.0]"))
    assert len(parsed(text).cells) == 6


def test_a_day_of_its_own_counts_for_the_cells_of_an_item_and_for_those_of_no_other():
    entries = parsed(with_(("flash-attn: 4.0.0b36\n", "flash-attn: 4.0.0b36\n    locked-at: 2026-11-23\n"))).entries
    assert {name: entry.locked_at for name, entry in entries.items()} == {
        FA4: "2026-11-23",
        FA2: "2026-11-20",
        FA0: "2026-11-20",
    }
    assert "2026-11-32" in refused(("flash-attn: 4.0.0b36\n", "flash-attn: 4.0.0b36\n    locked-at: 2026-11-32\n"))[0]


def test_writing_the_pins_that_torch_has_changes_nothing():
    text = with_(("torch: 2.11.0\n", "torch: 2.11.0\n    cuda: 13.0\n    triton: 3.6.0\n"))
    assert list(parsed(text).entries) == [FA4, FA2, FA0]


def test_with_adds_requirements_to_one_cell():
    matrix = parsed(with_(("flash-attn: 4.0.0b36", "flash-attn: 4.0.0b36\n    with: [datasets>=4]")))
    assert matrix.entries[FA4].extras == ("pytest", "datasets>=4")
    assert matrix.entries[FA0].extras == ("pytest",)


def test_a_framework_makes_a_cell_of_its_own():
    matrix = parsed(with_(("flash-attn: 4.0.0b36", "flash-attn: 4.0.0b36\n    framework: [none, xtuner==0.1.23]")))
    assert list(matrix.entries) == [FA4, f"{FA4}-xtuner0.1.23", FA2, FA0]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schema: 1", "schema: 2", "1:9: schema must be '1'"),
        ("2026-11-20", "2026-13-45", "2:12: '2026-13-45' is not a day of the calendar"),
        ("2026-11-20", "yesterday", "2:12: 'yesterday' is not written like 2026-11-20"),
        ("2026-11-20", "٢٠٢٦-11-20", "2:12: '٢٠٢٦-11-20' is not written like 2026-11-20"),
        ("sm_100:", "sm100:", "5:3: 'sm100' is not written like sm_90"),
        ("cards: [B200]", "cards: B200", "5:38: gpus.sm_100.cards must be a list"),
        ("cards: [B200]", "cards: []", "5:38: gpus.sm_100.cards must not be empty"),
        ("python: 3.11", "python: 4", "8:13: '4' is not written like 3.11"),
        (
            "    bootstrap: {suite: bookworm, packages: [python3, gcc]}\n",
            "",
            "8:5: the key 'bootstrap' is missing in bases.debian12",
        ),
        ("packages: [python3", "packages: ['x;y'", "10:45: 'x;y' is not written like a Debian package"),
        ("everywhere: [pytest]", "everywhere: ['pytest >']", "11:14: 'pytest >' is not a requirement (PEP 508): "),
        (
            "everywhere: [pytest]",
            "everywhere: ['a @ https://index.example/a.whl']",
            "11:14: 'a @ https://index.example/a.whl'",
        ),
        ("everywhere: [pytest]", "stack: [pytest]", "11:1: the key 'stack' is called 'everywhere' now; rename it"),
        ("torch: torch", "torch: 'to rch'", "13:10: 'to rch' is not written like a package name or a glob"),
        ('python: "*"', 'x-compiled: numpy\n  python: "*"', "15:3: 'x-compiled': the ending -compiled is for the"),
        ('python: "*"', "python: numpy", "12:1: no glob in layers matches every distribution; end the section"),
        (
            "when: flash-attn=4.*",
            "when: flash-atn=4.*",
            "17:11: there is no axis 'flash-atn'; did you mean flash-attn?",
        ),
        ("when: flash-attn=4.*", "when: flash-attn", "17:11: 'flash-attn' in 'flash-attn,cuda>=13' is not a condition"),
        ("when: flash-attn=4.*", "when: gpu=sm90", "17:11: 'gpu=sm90': 'sm90' is not a GPU architecture"),
        ("    because: one CUDA in an image\n", "", "17:5: the key 'because' is missing in amendments[0]"),
        ("torch: 2.11.0", "torch: {a: b}", "23:12: cells[0].torch must be text"),
        ("torch: 2.11.0", "torch: []", "23:12: cells[0].torch must not be empty"),
        ("torch: 2.11.0", "torch: 2.11", "23:12: torch 2.11 is not among the releases in facts/torch.json"),
        ("torch: 2.11.0", "torch: two", "23:12: 'two' is not a version of torch (PEP 440)"),
        ("torch: 2.11.0", "torch: 2.11.0+cu130", "23:12: torch 2.11.0+cu130: write a public version"),
        ("torch: 2.11.0", "torch: 02.11.0", "23:12: torch 02.11.0: write the normalized version 2.11.0"),
        ("torch: 2.11.0", "torch: 2.12.0", "23:12: torch 2.12.0 is not among the releases in facts/torch.json"),
        ("torch: 2.11.0", "torch: 2.10.0", "23:12: torch 2.10.0 has no wheel for Python 3.11 of base debian12; it has"),
        ("    torch: 2.11.0\n", "", "22:5: the key 'torch' is missing in cells[0]"),
        ("torch: 2.11.0", "torch: 2.11.0\n    trnasformers: 1", "24:5: unknown key 'trnasformers'; did you mean"),
        ("torch: 2.11.0", "torch: 2.11.0\n    flash_attn: none", "24:5: unknown key 'flash_attn'; did you mean"),
        ("transformers: 5.17.0", "transformers: 5.17.1", "24:19: transformers 5.17.1 is not among the releases in"),
        (
            "flash-attn: 4.0.0b36",
            "flash-attn: 3.0.0",
            "25:17: flash-attn 3.0.0: the package index has the fam",
        ),
        ("flash-attn: 4.0.0b36", "flash-attn: 4.0.0b37", "25:17: flash-attn-4 4.0.0b37 is not among the releases"),
        ("[2.8.3.post2, none]", "[none, 2.8.4]", "30:24: flash-attn 2.8.4 is not among the releases in facts/flash-"),
        (
            "flash-attn: 4.0.0b36",
            "flash-attn: 4.0.0b36\n    framework: xtuner",
            "26:16: 'xtuner' is not a framework with its version; one is written like xtuner0.1.23",
        ),
        (
            "flash-attn: 4.0.0b36",
            "flash-attn: 4.0.0b36\n    framework: [none, xtuner0.1.23]",
            "26:23: 'xtuner0.1.23' is not written like xtuner==0.1.23",
        ),
        (
            "flash-attn: 4.0.0b36",
            "flash-attn: 4.0.0b36\n    framework: xtuner==0.1.22",
            "26:16: xtuner 0.1.22 is not among the releases in facts/xtuner.json",
        ),
        (
            "because: one",
            "wheel: apex>=1\n    because: one",
            "20:12: 'apex>=1' is not written like transformer-engine-torch==2.20.2",
        ),
        (
            "because: one",
            "wheel: apex==1.0+cu13\n    because: one",
            "20:12: apex 1.0+cu13: write a public version",
        ),
        ("base: debian12", "base: debian13", "26:11: 'debian13' is not in bases; the nearest there is debian12"),
        ("- gpu: sm_90", "- gpu: sm_91", "22:10: 'sm_91' is not in gpus; the nearest there is sm_90"),
        (
            "torch: 2.11.0",
            "torch: 2.11.0\n    cuda: 12.8",
            "24:11: cuda 12.8 is written here, but torch 2.11.0 pins cuda",
        ),
        ("torch: 2.11.0", "torch: 2.11.0\n    triton: 3.5.1", "24:13: triton 3.5.1 is written here, but torch 2.11.0"),
        ("torch: 2.11.0", "torch: 2.11.0\n    triton: 3.6", "24:13: triton 3.6 is written here, but torch 2.11.0"),
        ("torch: 2.11.0", "torch: 2.10.0\n    cuda: 13.0", "24:11: cuda 13.0 is written here, but torch 2.10.0"),
        ("torch: 2.11.0", "torch: 2.10.0\n    triton: 3.6.0", "24:13: triton 3.6.0 is written here, but torch 2.10.0"),
        (
            "[2.8.3.post2, none]",
            "[none, none]",
            f"27:5: the cell {FA0} is there already, from line 27; remove one of them",
        ),
        (
            "default: sm90",
            "default: sm91",
            f"33:12: the alias 'default' names '{FA4.replace('sm90', 'sm91')}', which is",
        ),
        ("default: sm90", f"{FA0}: sm90", f"33:3: the alias '{FA0}' is itself a cell id; give it another name"),
        ("aliases:", "alias:", "32:1: unknown key 'alias'; did you mean 'aliases'?"),
        ("cells:", "cels:", "1:1: the key 'cells' is missing"),
        ("gpus:", "gpus: []\nx:", "3:7: gpus must be a mapping (KEY: VALUE lines)"),
    ],
)
def test_a_defect_is_named_at_its_place(old, new, message):
    lines = refused((old, new))
    assert any(line.startswith(f"matrix.yaml:{message}") for line in lines), lines
    if not message.startswith(("1:1:", "3:7:", "10:12: 'python")):
        assert len(lines) == 1, lines


@pytest.mark.parametrize("text", ["", "[]", "just words", "- a\n- b\n"])
def test_a_file_that_is_not_a_mapping_is_one_error(text):
    assert refused(text=text) == ["matrix.yaml:1:1: the file must be a mapping (KEY: VALUE lines)"]


def test_both_cuda_and_triton_are_compared():
    lines = refused(("torch: 2.11.0\n", "torch: 2.11.0\n    cuda: 12.8\n    triton: 3.5.1\n"))
    assert [line.split()[1] for line in lines] == ["cuda", "triton"]


def test_all_errors_of_the_file_are_reported_in_one_run():
    lines = refused(
        ("schema: 1", "schema: 1\nschema: 1\nnonsense: 1"),
        ("2026-11-20", "2026-02-30"),
        ("[H100, H200]", "5"),
        ("everywhere: [pytest]", "everywhere: ['=']"),
        ("when: flash-attn=4.*", "when: torhc=1"),
        ("torch: 2.11.0", "torch: 2.99.0"),
        ("transformers: 4.57.6", "transformers: 9.9"),
        ("[2.8.3.post2, none]", "[2.8.3.post2, 1.0]"),
        ("default: ", "default: latest\n  other: "),
    )
    assert [re.match(r"matrix.yaml:(\d+):\d+: ", line)[1] for line in lines] == [
        "2",  # schema twice
        "3",  # an unknown key
        "4",  # no day
        "6",  # cards
        "13",  # stack
        "19",  # when
        "25",  # torch
        "32",  # flash-attn 1.0, so its item is taken out whole
        "35",  # an alias to nothing
    ]


def test_a_malformed_item_neither_hides_nor_adds_defects_of_others():
    lines = refused(("- gpu: sm_90\n", "- 5\n  - gpu: sm_90\n"), ("transformers: 4.57.6", "transformers: 4.57.7"))
    assert len(lines) == 2
    assert lines[0] == "matrix.yaml:22:5: cells[0] must be a mapping (KEY: VALUE lines)"
    assert "transformers 4.57.7 is not" in lines[1]


def test_a_section_whose_only_item_is_malformed_is_not_called_empty():
    lines = refused(("glibc: 2.36", "glibc: new"))
    assert lines == ["matrix.yaml:9:12: 'new' is not written like 2.36"]


def test_an_item_cannot_stand_for_too_many_cells():
    many = "[" + ", ".join(["5.17.0"] * 2000) + "]"
    (line,) = refused(("transformers: 5.17.0", f"transformers: {many}"))
    assert line == "matrix.yaml:22:5: this item stands for 2,000 cells; at most 1000 are allowed"


@pytest.mark.parametrize(
    ("count", "message"),
    [(500, ["the cell"]), (501, ["this item stands for 1,002 cells; at most 1000 are allowed"])],
)
def test_an_item_may_stand_for_a_thousand_cells_with_its_frameworks(count, message):
    many = "[" + ", ".join(["5.17.0"] * count) + "]"
    frameworks = "flash-attn: 4.0.0b36\n    framework: [none, xtuner==0.1.23]"
    lines = refused(("transformers: 5.17.0", f"transformers: {many}"), ("flash-attn: 4.0.0b36", frameworks))
    assert {line.split(": ", 1)[1][: len(text)] for line in lines for text in message} == set(message)


def test_a_release_of_a_package_without_facts_is_taken_as_it_is_written():
    facts = replace(KNOWLEDGE, releases=lambda _package: None)
    text = with_(("transformers: 5.17.0", "transformers: 9.9"))
    made = matrix.parse_matrix(text.partition("aliases:")[0] + "floors: {torch: 2.0}\n", "matrix.yaml", facts)
    assert FA4.replace("tf5.17.0", "tf9.9") in made.entries


def test_any_version_of_a_package_without_facts_is_accepted():
    assert len(parsed().cells) == 3
    lines = refused(("torch: 2.11.0", "torch: 1.0"))
    assert "`knowngood harvest torch` if it is new" in lines[0]


@given(
    st.sampled_from(
        ["torch: 2.11.0", "sm_90", "debian12", "bookworm", "pytest", "4.0.0b36", "flash-attn=4.*,cuda>=13"]
    ),
    st.text(max_size=20),
)
def test_any_text_is_parsed_or_refused(old, text):
    quoted = (
        '"' + "".join(f"\\U{ord(character):08x}" for character in text if not "\ud800" <= character <= "\udfff") + '"'
    )
    try:
        matrix = parsed(with_((old, quoted)))
    except InputError as error:
        assert error.problems  # noqa: PT017
    else:
        assert all(re.fullmatch(r"[a-z0-9.-]+", str(cell)) for cell in matrix.cells)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("size: {cell: 3 bananas}", "3 bananas.* is not a size such as 3.0 GB"),
        ("size: {cell: 0 GB}", "is not a size"),
        ("size: {cel: 3 GB}", "did you mean 'cell'"),
        ("size: 3 GB", "size must be a mapping"),
    ],
)
def test_a_malformed_size_is_reported_at_its_line(line, message):
    text = with_(("floors:", f"{line}\nfloors:"))
    number = text.splitlines().index(line) + 1
    with pytest.raises(InputError, match=rf"matrix.yaml:{number}:.*{message}"):
        parsed(text)
    assert parsed(with_(("floors:", "size: {cell: 3 GB}\nfloors:"))).size == 3 * 10**9


def with_arm_facts(**changes: str | None) -> matrix.MatrixFacts:
    pins = {
        release: replace(pin, aarch64_cuda=changes.get("cuda", pin.cuda)) for release, pin in KNOWLEDGE.torch.items()
    }
    return replace(KNOWLEDGE, torch=pins)


def test_an_item_stands_for_its_cells_on_each_host_with_a_base_for_each():
    text = with_(("flash-attn: 4.0.0b36", "flash-attn: 4.0.0b36\n    host: [x86-64, aarch64]"))
    made = matrix.parse_matrix(text, "matrix.yaml", with_arm_facts())
    assert list(made.entries) == [FA4, f"{FA4}-aarch64", FA2, FA0]
    assert made.entries[f"{FA4}-aarch64"].base == "debian12-aarch64"
    assert list(made.bases) == ["debian12", "debian12-aarch64"]
    assert made.find_base("debian12-aarch64").bootstrap == made.find_base("debian12").bootstrap
    assert [made.find_base(name).host for name in made.bases] == ["x86-64", "aarch64"]


@pytest.mark.parametrize(
    ("cuda", "message"),
    [
        (
            "none",
            "the wheel of torch 2.11.0 for aarch64 is for the CPU only; take a release whose wheel has CUDA there",
        ),
        ("12.9", "the wheel of torch 2.11.0 for aarch64 is for CUDA 12.9; take a release whose wheel has CUDA there"),
    ],
)
def test_a_torch_without_cuda_on_aarch64_has_no_cell_there(cuda, message):
    text = with_(("flash-attn: 4.0.0b36", "flash-attn: 4.0.0b36\n    host: aarch64"))
    with pytest.raises(InputError) as caught:
        matrix.parse_matrix(text, "matrix.yaml", with_arm_facts(cuda=cuda))
    assert message in str(caught.value)


def test_a_gpu_that_only_has_hosts_of_arm_has_no_cell_for_x86_64():
    changes = ("cards: [B200]", "cards: [GB10], aarch64: [GB10]"), ("gpu: sm_90\n", "gpu: sm_100\n")
    [line] = [line for line in refused(*changes) if "host" in line]
    assert line.endswith("every card of sm_100 stands beside a CPU of Arm; write host: aarch64")


def test_a_host_that_images_are_not_for_is_refused_with_those_that_they_are_for():
    [line] = refused(("flash-attn: 4.0.0b36", "flash-attn: 4.0.0b36\n    host: arm"))
    assert "must be 'x86-64' or 'aarch64'" in line


SECTIONS = re.findall(r"^([a-z-]+):", MATRIX, re.MULTILINE)


@pytest.mark.parametrize("section", SECTIONS)
def test_a_misspelt_section_is_a_defect_with_its_place_and_no_traceback(section):
    problems = (
        refused((f"{section}:", f"{section}z:"))
        if MATRIX.startswith(f"{section}:")
        else refused((f"\n{section}:", f"\n{section}z:"))
    )
    assert any(f"unknown key '{section}z'" in problem for problem in problems)


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("value", ["", "1", "word", "[]", "{}", "[[]]", "{a: b}", "[1, 2, 3]"])
def test_a_section_of_any_shape_is_parsed_or_refused(section, value):
    text = re.sub(rf"^{section}:.*\n(?:[ -].*\n)*", f"{section}: {value}\n", MATRIX, flags=re.MULTILINE)
    with contextlib.suppress(InputError):
        parsed(text)


def test_the_nearest_cell_to_one_that_is_not_there_is_for_the_same_gpu():
    """It was the one that is spelt alike, for another GPU."""
    missing = FA0.replace("torch2.11.0", "torch2.10.0").replace("cu130", "cu128")
    near = FA0.replace("sm90", "sm89").replace("torch2.11.0", "torch2.10.0").replace("cu130", "cu128")
    entries = {
        name: MatrixEntry(cell=parse_cell(name), base="b", extras=(), locked_at="2026-11-20") for name in (near, FA0)
    }
    assert hint_nearest_cell(missing, entries) == f"; the nearest is {FA0}"
