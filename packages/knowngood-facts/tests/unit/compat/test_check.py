"""`check` on the real facts: boundaries, an independent oracle without boxes, the JSON document."""

from __future__ import annotations

import bisect
import io
import itertools
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from knowngood.cli.main import main
from knowngood.core import gpus
from knowngood.core.attention import parse_attention
from knowngood.core.errors import UsageError
from knowngood.core.local_files import data_folder
from knowngood.evidence.run_evidence import Evidence, RunPlace, store_evidence
from knowngood_facts.compat import knowledge
from knowngood_facts.compat.check_answer import CheckAnswer, check_query
from knowngood_facts.compat.factbook import FactFolder
from knowngood_facts.compat.matrix_cells import packages_of_cell
from knowngood_facts.compat.query import PackageSpec, Query, parse_requirement, query_from_document
from knowngood_facts.compat.suggestions import kept_attentions
from knowngood_facts.facts.atlas_lookup import atlas_folder
from knowngood_facts.facts.broken_use_table import read_broken_uses
from knowngood_facts.facts.package_metadata import read_package_metadata
from metadata_samples import with_metadata

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from knowngood.core.cell import Cell

KNOWN = knowledge.load_knowledge()
BOOK = FactFolder(path=data_folder() / "packages/knowngood-facts/facts").read_book()
RULES_ALONE = with_metadata(KNOWN.universe, {})


def ask(*requirements: str, gpu: str | None = None, attn: str | None = None, **more: Any) -> CheckAnswer:
    used = more.pop("used", {})
    request = Query(
        gpu=gpu,
        attn=None if attn is None else parse_attention(attn),
        axes=more,
        conditions=used,
        packages=tuple(wanted for text in requirements if (wanted := parse_requirement(text))),
    )
    return check_query(KNOWN.for_query(request), request, KNOWN.published)


def errors(result: CheckAnswer) -> set[str]:
    return {finding.id for finding in result.findings if finding.severity == "error"}


@pytest.mark.parametrize(
    ("requirements", "more", "broken_by"),
    [
        (["torch==2.6.0", "triton==3.2.0"], {}, None),
        (["torch==2.6.0", "triton==3.3.0"], {}, "requires:torch:triton"),
        (["torch==2.14.0", "triton==3.8.0"], {}, None),
        (["torch==2.10.0"], {"gpu": "V100"}, None),
        (["torch==2.11.0"], {"gpu": "V100"}, "torch-runs-on-gpu"),
        (["torch==2.7.1"], {"gpu": "RTX 5090"}, "torch-runs-on-gpu"),
        (["torch==2.8.0"], {"gpu": "RTX 5090"}, None),
        (["torch==2.1.0"], {"gpu": "RTX 4090"}, None),
        (["torch==2.0.1"], {"gpu": "H100"}, "torch-runs-on-gpu"),
        (["flash-attn==2.8.3"], {"gpu": "RTX 5000 16GB"}, "flash-attn-2-gpu"),
        (["flash-attn==2.8.3"], {"gpu": "A100"}, None),
        (["flash-attn==2.7.2.post1"], {"gpu": "B200"}, "flash-attn-2-gpu"),
        (["flash-attn==2.7.3"], {"gpu": "B200"}, None),
        (["flash-attn==4.0.0b36"], {"gpu": "A100"}, "flash-attn-4-gpu"),
        (["flash-attn==4.0.0b36"], {"gpu": "H100"}, None),
        (["torch==2.11.0"], {"driver": "575.57"}, "driver-for-cuda"),
        (["torch==2.11.0"], {"driver": "580.65.06"}, None),
        (["torch==2.10.0"], {"driver": "525.60.13"}, None),
        (["torch==2.10.0"], {"driver": "525.60.11"}, "driver-for-cuda"),
        (["torch==2.10.0"], {"driver": "550.54", "gpu": "B200"}, "driver-for-blackwell"),
        (["torch==2.6.0"], {"glibc": "2.16"}, "binary:torch:glibc"),
        (["torch==2.6.0"], {"glibc": "2.17"}, None),
        (["torch==2.6.0"], {"python": "3.14"}, "wheel:torch:python"),
        (["torch==2.6.0"], {"python": "3.13.2"}, None),
        (["torch==2.5.1", "transformers==5.20.0"], {}, "transformers-enforces-torch"),
        (["torch==2.6.0", "transformers==5.20.0"], {}, None),
        (["transformers==5.3.0"], {"attn": "fa4"}, "attention-known"),
        (["transformers==5.4.0"], {"attn": "fa4"}, None),
        (["transformers==5.4.0", "flash-attn==2.3.2"], {"attn": "fa2"}, "fa2-minimum"),
        (["transformers==5.4.0", "flash-attn==2.3.3"], {"attn": "fa2"}, None),
        (["transformers==4.46.3"], {"attn": "flex"}, "attention-known"),
        (["transformers==4.47.1"], {"attn": "flex"}, "qwen2-attention"),
        (["transformers==4.47.1"], {"attn": "flex", "used": {"model": "qwen2"}}, "qwen2-attention"),
        (["transformers==4.47.1"], {"attn": "flex", "used": {"model": "gemma2"}}, None),
        (["transformers==4.50.0"], {"attn": "flex"}, None),
        (["xtuner==0.1.23", "transformers==4.37.2"], {}, "model:xtuner:qwen2"),
        (["xtuner==0.1.23", "transformers==4.37.2"], {"used": {"model": "llama"}}, None),
        (["xtuner==0.1.23", "transformers==4.39.3"], {"used": {"model": "mixtral"}}, "model:xtuner:mixtral"),
        (["xtuner==0.1.23", "transformers==4.39.0"], {}, None),
        (["transformer-engine==1.9.0", "flash-attn==2.5.9.post1"], {}, "collision:transformer-engine+flash-attn"),
        (["transformer-engine==1.10.0", "flash-attn==2.5.9.post1"], {}, "transformer-engine-asserts-flash-attn"),
        (["transformer-engine==1.10.0", "flash-attn==2.5.8"], {}, None),
        (["transformer-engine==1.11.0", "flash-attn==2.7.0.post2"], {}, "transformer-engine-asserts-flash-attn"),
        (
            ["transformer-engine-cu12==1.11.0", "flash-attn==2.7.0.post2"],
            {},
            "transformer-engine-cu12-asserts-flash-attn",
        ),
        (["transformer-engine==1.12.0", "flash-attn==2.8.3"], {}, None),
        (["transformer-engine==1.11.0", "flash-attn==none"], {}, "transformer-engine-needs-flash-attn"),
        (["transformer-engine-cu12==1.9.0", "flash-attn==none"], {}, "transformer-engine-cu12-needs-flash-attn"),
        (["transformer-engine==1.12.0", "flash-attn==none"], {}, None),
        (["torch==2.0.1"], {"gpu": "RTX 4090", "driver": "470.256.02"}, "driver-for-ada-and-hopper"),
        (["torch==2.0.1"], {"gpu": "RTX 4090", "driver": "520.61.05"}, None),
        (["torch==2.0.1"], {"gpu": "RTX 3090", "driver": "450.102.04"}, "driver-for-ampere-cards"),
        (["torch==2.0.1"], {"gpu": "A100", "driver": "450.102.04"}, None),
        (["torch==2.8.0"], {"gpu": "B300", "driver": "570.86.10"}, "driver-for-blackwell-ultra"),
        (["torch==2.10.0"], {"gpu": "V100", "driver": "590.48.01"}, "driver-without-volta"),
        (["torch==2.10.0"], {"gpu": "V100", "driver": "580.126.09"}, None),
        (["torch==2.10.0"], {"gpu": "T4", "driver": "590.48.01"}, None),
        (["triton==3.5.0"], {"gpu": "B300", "attn": "flex"}, "flex-ptxas-for-blackwell-ultra"),
        (["triton==3.5.0"], {"gpu": "GB10", "used": {"compile": "true"}}, "ptxas-for-blackwell-ultra"),
        (["triton==3.6.0"], {"gpu": "B300", "attn": "flex"}, None),
        (["triton==3.5.0"], {"gpu": "B200", "attn": "flex"}, None),
        (
            ["transformer-engine==2.11.0", "transformer-engine-cu12==2.10.0"],
            {},
            "extra:transformer-engine:transformer-engine-cu12",
        ),
        (
            ["transformer-engine==2.11.0", "transformer-engine-torch==2.10.0"],
            {},
            "extra:transformer-engine:transformer-engine-torch",
        ),
        (["transformer-engine==2.11.0", "transformer-engine-cu12==2.11.0"], {}, None),
        (["torch==2.1.2"], {"attn": "sdpa-flash", "gpu": "T4"}, None),
        (["torch==2.2.0"], {"attn": "sdpa-flash", "gpu": "T4"}, "sdpa-flash-gpu"),
        (["flash-attn==2.8.3", "torch==2.10.0"], {"nvcc": "13.0"}, "nvcc-major-for-flash-attn"),
        (["flash-attn==2.8.3", "torch==2.10.0"], {"nvcc": "12.4"}, None),
        (["flash-attn==2.8.3", "torch==2.10.0"], {"nvcc": "12.4", "gpu": "B200"}, "nvcc-for-gpu"),
        (["flash-attn==2.8.3"], {"nvcc": "11.6"}, "nvcc-for-flash-attn"),
        (["flash-attn==2.8.3"], {"attn": "fa2", "used": {"head-dim": "257"}}, "flash-attention-head-dim"),
        (["flash-attn==2.8.3"], {"attn": "fa2", "used": {"head-dim": "256"}}, None),
        (["flash-attn==2.5.4"], {"gpu": "A10", "used": {"head-dim": "256"}}, "flash-attn-backward-head-dim"),
        (["flash-attn==2.5.5"], {"gpu": "A10", "used": {"head-dim": "256"}}, None),
        (["flash-attn==2.5.5"], {"gpu": "A10", "used": {"head-dim": "224"}}, "flash-attn-backward-head-dim-224"),
        (
            ["flash-attn==2.6.3"],
            {"gpu": "A10", "used": {"head-dim": "256", "dropout": "0.1"}},
            "flash-attn-backward-dropout",
        ),
        (["flash-attn==2.7.3"], {"gpu": "A10", "used": {"head-dim": "256", "dropout": "0.1"}}, None),
        (["torch==2.6.0", "flash-attn==2.8.3+cu12torch2.6cxx11abiFALSE"], {}, None),
        (["torch==2.6.0", "flash-attn==2.8.3+cu12torch2.6cxx11abiTRUE"], {}, "wheel-cxx11abi"),
        (["torch==2.7.0", "flash-attn==2.8.3+cu12torch2.6cxx11abiFALSE"], {}, "wheel-cxx11abi"),
        (["torch==2.10.0", "flash-attn==2.8.3+cu12torch2.9cxx11abiTRUE"], {}, "wheel-torch"),
        (["torch==2.14.0", "flash-attn==2.8.3+cu13torch2.13cxx11abiTRUE"], {}, "wheel-torch"),
        (["torch==2.11.0", "flash-attn==2.8.3+cu12torch2.11cxx11abiTRUE"], {}, "wheel-cuda"),
        (["flash_attn-2.8.3+cu12torch2.6-cp312-cp312-linux_x86_64.whl"], {"python": "3.11"}, "wheel-python"),
        (["xtuner==0.2.0", "transformers==4.57.6"], {}, "requires:xtuner:transformers"),
        (["torch==2.2.2", "numpy==2.0.0"], {}, "torch-of-numpy-1"),
        (["torch==2.2.2", "numpy==1.26.4"], {}, None),
        (["torch==2.3.0", "numpy==2.0.0"], {}, None),
    ],
)
def test_boundaries(requirements: list[str], more: dict[str, Any], broken_by: str | None):
    result = ask(*requirements, **more)
    if broken_by is None:
        assert result.verdict in ("compatible", "verified"), errors(result)
    else:
        assert result.verdict == "broken"
        assert broken_by in errors(result)


def test_flash_attention_3_is_unknown_since_no_package_with_facts_provides_it():
    result = ask("torch==2.11.0", "transformers==5.17.0", gpu="H100", attn="fa3")
    assert result.verdict == "unknown"
    assert "flash-attn-3" in next(item.because for item in result.findings if item.id == "unknown:fa3-needs-package")
    assert ask("torch==2.11.0", "transformers==5.17.0", gpu="A100", attn="fa3").verdict == "broken"


def test_a_release_without_facts_is_unknown():
    result = ask("torch==2.99.0", "transformers==4.57.6")
    assert result.verdict == "unknown"
    assert result.verdict.exit_code == 3


def test_the_nearest_release_is_near_in_order_not_in_spelling():
    assert "the nearest known release is 2.15.0" in ask("torch==2.16.0").findings[0].because


def test_a_known_collision_beside_an_unknown_release_is_broken():
    assert ask("torch==2.6.0", "triton==3.3.0", "transformers==99.0").verdict == "broken"


def test_another_build_of_torch_is_unknown_where_facts_are_of_the_default_build():
    assert ask("torch==2.11.0+cu126", gpu="V100").verdict == "unknown"
    assert ask("torch==2.11.0+cu130", gpu="H100").verdict == "compatible"
    assert ask("torch==2.11.0+cu126", "triton==3.5.0").verdict == "broken"
    assert ask("torch==2.11.0+cu126", driver="550.54").verdict == "compatible"


def test_packages_without_facts_are_judged_by_the_bounds_on_them():
    assert "requires:transformers:tokenizers" in errors(ask("transformers==4.57.6", "tokenizers==0.19.1"))
    assert ask("transformers==4.57.6", "tokenizers==0.22.1").verdict == "compatible"
    assert ask("transformers==4.57.6", "no-such-package==0.22.1").verdict == "unknown"


def test_what_a_query_leaves_open_can_collide():
    # torch 2.0.1 ends with Python 3.11, and so does triton 2.0.0, which it pins: nothing above fits.
    result = ask("torch==2.0.1", "triton>=3.0")
    assert result.verdict == "broken"
    result = ask("xtuner==0.2.0", "torch==2.15.0", python="3.13")
    assert result.verdict == "broken"


def test_conditions_of_use_decide_the_severity_of_a_finding():
    def severity(**used: str) -> str | None:
        found = ask("torch==2.6.0", gpu="V100", used=used).findings
        return next((finding.severity for finding in found if finding.id == "bf16-in-hardware"), None)

    assert severity() == "warning"
    assert severity(dtype="bf16") == "error"
    assert severity(dtype="fp16") is None
    assert ask("torch==2.6.0", gpu="V100").verdict == "compatible"
    assert ask("torch==2.6.0", gpu="V100", used={"dtype": "bf16"}).verdict == "broken"


def test_no_warning_about_a_use_that_was_not_stated():
    assert "pure-fp16" not in [finding.id for finding in ask("torch==2.6.0").findings]
    assert "pure-fp16" in [finding.id for finding in ask("torch==2.6.0", used={"dtype": "fp16-pure"}).findings]


def test_a_query_without_a_package_that_has_facts_is_unknown():
    assert ask(gpu="H100").verdict == "unknown"
    assert ask("torch", gpu="H100").verdict == "compatible"


def test_an_unknown_condition_of_use_gives_a_note_with_the_nearest():
    assert "dtype" in ask("torch==2.6.0", used={"dtyp": "bf16"}).notes[0]


def test_a_gpu_family_with_different_verdicts_is_refused():
    assert ask("torch==2.6.0", gpu="Hopper").verdict == "compatible"
    with pytest.raises(UsageError, match=r"sm_100 .*compatible; sm_110 .*broken"):
        ask("torch==2.8.0", gpu="Blackwell")
    assert ask("torch==2.11.0", gpu="Ampere").verdict == "compatible"


def test_a_gpu_of_another_maker_makes_the_answer_unknown():
    result = ask("torch==2.6.0", "triton==3.2.0", gpu="MI300X")
    assert (result.verdict, result.verdict.exit_code) == ("unknown", 3)
    assert result.findings[0].because.startswith("AMD is not covered")
    assert ask("torch==2.6.0", "triton==3.3.0", gpu="MI300X").verdict == "broken"


def test_the_suggestion_is_the_smallest_change():
    assert ask("torch==2.6.0", "triton==3.3.1", "transformers==4.57.6").changes == {"triton": "3.2.0"}
    assert ask("torch==2.6.0", "triton==3.1.0").changes == {"triton": "3.2.0"}  # torch stays
    assert ask("torch==2.5.1", "transformers==5.20.0").changes == {"torch": "2.6.0"}  # forward, though 5.19 is as near
    assert ask("torch==2.6.0", "flash-attn==2.6.3", gpu="V100").changes == {"flash-attn": "none"}
    # The same release, another build.
    assert ask("torch==2.6.0", "flash-attn==2.8.3+cu12torch2.7cxx11abiTRUE").changes == {"flash-attn": "2.8.3"}


def test_a_suggestion_keeps_the_attention_and_the_fix_of_the_finding():
    # 4.47.1 is nearer, but its Qwen2 has no FlexAttention; the finding says 4.50 or newer.
    assert ask("transformers==4.48.0", attn="flex").changes == {"transformers": "4.50.0"}
    # xtuner 0.1.22 is as near, but the finding says to take an older transformers.
    xtuner = ("xtuner==0.1.23", "transformers==4.44.2", "flash-attn==2.6.3", "torch==2.4.0")
    result = ask(*xtuner, gpu="A100", used={"xtuner.use_varlen_attn": "false"})
    assert result.changes == {"transformers": "4.42.4"}


def test_a_cell_is_named_only_when_it_has_the_attention():
    packages = ("torch==2.11.0", "transformers==4.57.6", "triton==3.5.0")
    assert ask(*packages, gpu="H100").cell == "sm90-cu130-torch2.11.0-tf4.57.6-fa0-triton3.6.0-py311"
    assert ask("torch==2.11.0", "transformers==5.17.0", gpu="H100", attn="fa4").cell is not None
    assert ask("torch==2.11.0", "transformers==5.17.0", gpu="H100", attn="fa2").cell is None
    assert ask(*packages, gpu="H100", attn="fa4").cell is None
    assert ask("torch==2.11.0", "transformers==5.17.0", gpu="H100", attn="fa3").cell is None


def test_a_change_of_more_packages_is_not_suggested_to_avoid_a_warning():
    result = ask("openrlhf==0.6.0", "flash-attn==2.0.1", "xformers==0.0.28", gpu="H100", attn="fa2")
    assert result.changes is not None
    assert result.changes.keys() == {"flash-attn"}


def test_the_answer_names_the_published_cell():
    result = ask("torch==2.11.0", "transformers==4.57.6", "flash-attn==2.8.3.post2", gpu="H200")
    assert result.cell == "sm90-cu130-torch2.11.0-tf4.57.6-fa2.8.3.post2-triton3.6.0-py311"


def test_attentions_under_which_the_met_boxes_hold_are_kept():
    universe = KNOWN.universe
    attn = universe.index.domains["attn"]
    masks = {bit: box.masks["attn"] for bit, box in enumerate(universe.index.boxes) if "attn" in box.masks}
    narrow = [bit for bit, mask in masks.items() if 0 < mask < attn.all]
    apart = next((a, b) for a in narrow for b in narrow if not masks[a] & masks[b])
    assert kept_attentions(universe.index, []) == attn.all
    assert kept_attentions(universe.index, narrow[:1]) == masks[narrow[0]]
    assert kept_attentions(universe.index, apart) == attn.all


FA0 = "sm90-cu130-torch2.11.0-tf4.57.6-fa0-triton3.6.0-py311"


def recorded_run(**changes: Any) -> Evidence:
    """A run of a cell that trained on its GPU, with some of it changed."""
    checks = changes.pop("checks", {"eager": "pass", "sdpa": "pass"})
    installed = {"torch": "2.11.0+cu130", "transformers": "4.57.6", "triton": "3.6.0", **changes.pop("installed", {})}
    report = {
        "verdict": {"ok": changes.pop("ok", True)},
        "suite_hash": "5" * 64,
        "checks": [{"setting": setting, "outcome": outcome} for setting, outcome in checks.items()],
        "environment": {"distributions": installed},
    }
    fields = {"where": RunPlace.CONTAINER_GPU, "image": "sha256:1", "when": "2026-11-21T10:00:00+00:00", "node": {}}
    return Evidence(cell=FA0, command=("python",), report=report, **{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "more", "verdict", "runs"),
    [
        ({}, {}, "verified", 1),
        ({}, {"attn": "sdpa"}, "verified", 1),
        ({}, {"attn": "flex"}, "compatible", 0),
        ({}, {"gpu": "A100"}, "compatible", 0),
        ({}, {"python": "3.12"}, "compatible", 0),
        ({}, {"conditions": {"dtype": "fp16"}}, "compatible", 0),
        ({}, {"conditions": {"model": "some-new-model"}}, "compatible", 0),
        ({"where": RunPlace.CONTAINER_CPU}, {}, "compatible", 1),
        ({"where": RunPlace.BARE}, {}, "compatible", 0),
        ({"ok": False}, {}, "compatible", 0),
        ({"checks": {"eager": "refused"}}, {}, "compatible", 0),
        ({"installed": {"transformers": "4.57.5"}}, {}, "compatible", 0),
        ({"installed": {"peft": "0.20.0"}}, {"also": "peft==0.20.0"}, "verified", 1),
        ({"installed": {"peft": "0.20.0"}}, {"also": "peft"}, "verified", 1),
        ({"installed": {"peft": "0.20.1"}}, {"also": "peft==0.20.0"}, "compatible", 0),
        ({}, {"also": "peft"}, "compatible", 0),
        ({}, {"also": "no-such-package"}, "unknown", 0),
        ({}, {"also": "transformers[vision]==4.57.6"}, "compatible", 0),
    ],
)
def test_only_a_run_that_trained_with_exactly_this_combination_verifies_it(
    tmp_path: Path, changes: dict[str, Any], more: dict[str, Any], verdict: str, runs: int
):
    store_evidence(recorded_run(**changes), tmp_path)
    known = replace(KNOWN.published, folder=tmp_path)
    options = {"gpu": "H100", **more}
    texts = ["torch==2.11.0", "transformers==4.57.6", *filter(None, [options.pop("also", None)])]
    packages = tuple(map(parse_requirement, texts))
    attn = parse_attention(options.pop("attn")) if "attn" in options else None
    axes = {"python": options.pop("python")} if "python" in options else {}
    result = check_query(KNOWN.universe, Query(**options, attn=attn, axes=axes, packages=packages), known)
    assert (result.verdict, len(result.evidence)) == (verdict, runs)


@pytest.mark.parametrize(
    ("torch", "gpu", "used", "broken"),
    [
        ("2.10.0", None, {"machine": "aarch64"}, True),
        ("2.10.0", None, {"machine": "arm64"}, True),
        ("2.11.0", None, {"machine": "aarch64"}, False),
        ("2.10.0", "GH200", {}, True),
        ("2.11.0", "GH200", {}, False),
        ("2.10.0", "H100", {}, False),
        ("2.10.0", None, {"machine": "x86_64"}, False),
    ],
)
def test_torch_for_arm_has_cuda_from_2_11_on(torch: str, gpu: str | None, used: dict[str, str], broken: bool):
    result = ask(f"torch=={torch}", gpu=gpu, used=used)
    assert ("torch-cuda-on-aarch64" in errors(result)) is broken
    if gpu == "GH200" or used.get("machine", "x86_64") != "x86_64":
        assert broken or str(result.cell).endswith("-aarch64")
        assert ("host:aarch64" in {finding.id for finding in result.findings}) is broken


@pytest.mark.parametrize(
    ("transformers", "of"), [("4.57.0", "the releases around transformers 4.57.0"), ("4.57.1", "transformers 4.57.1")]
)
def test_a_withdrawn_release_that_nobody_read_counts_as_those_around_it(transformers: str, of: str):
    (finding,) = [
        item for item in ask(f"transformers=={transformers}", "torch==2.1.0").findings if item.id.startswith("uses:")
    ]
    assert finding.source == (f"the sources of {of} and torch 2.1.0",)


def test_a_machine_that_was_not_stated_is_no_condition_that_is_missing():
    assert not any("machine" in finding.when for finding in ask("torch==2.10.0").findings)


def test_a_list_is_resolved_for_the_machine():
    because = {finding.because for finding in ask("bitsandbytes==0.43.0", used={"machine": "aarch64"}).findings}
    assert "bitsandbytes 0.43.0 has no wheel for Python 3.11 on Linux aarch64, and no sdist" in because
    assert "broken" not in ask("bitsandbytes==0.43.0").verdict


def test_another_machine_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match="aarch64"):
        ask("torch==2.10.0", used={"machine": "aarch63"})


def facts_of(package: str, version: str) -> Mapping[str, Any]:
    return BOOK.tables[package][version]["facts"]


def allowed(specifier: str | None, version: str) -> bool:
    return specifier is None or SpecifierSet(specifier).contains(version, prereleases=True)


def tritons_of(torch: str, python: str) -> list[Requirement]:
    """What a torch requires of triton on a Python, by its metadata."""
    metadata = read_package_metadata("torch")
    assert metadata is not None
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    environment |= {"platform_system": "Linux", "platform_machine": "x86_64", "sys_platform": "linux"}
    requirements = map(Requirement, metadata.releases[torch].requirements)
    tritons = [item for item in requirements if item.name == "triton"]
    return [item for item in tritons if item.marker is None or item.marker.evaluate({**environment, "extra": ""})]


def oracle(cell: Mapping[str, str]) -> bool:  # noqa: C901, PLR0911 - one question after the other
    """Whether nothing is wrong with a full cell, straight from the facts."""
    torch, transformers, triton = (facts_of(name, cell[name]) for name in ("torch", "transformers", "triton"))
    packages = {"torch": torch, "transformers": transformers, "triton": triton}
    flash = None
    if cell["flash-attn"] != "none":
        flash = packages["flash-attn"] = facts_of("flash-attn", cell["flash-attn"])
    for facts in packages.values():
        if not allowed(facts.get("requires_python"), cell["python"] + ".99"):
            return False
        if facts.get("pythons") and cell["python"] not in facts["pythons"]:
            return False
        if "glibc" in facts and Version(facts["glibc"]) > Version(cell["glibc"]):
            return False
    if not all(item.specifier.contains(cell["triton"]) for item in tritons_of(cell["torch"], cell["python"])):
        return False
    has_cuda = torch["aarch64_cuda"] != "none" or not KNOWN.universe.gpus.has_arm_host(cell["gpu"])
    if not (has_cuda and gpus.code_runs_on_gpu(cell["gpu"], torch["sass"], torch["ptx"])):
        return False
    if flash and not gpus.code_runs_on_gpu(cell["gpu"], flash["sass"], flash["ptx"]):
        return False
    if flash and flash["cxx_standard"] < torch["cxx_minimum"]:
        return False
    branches = {"sm_86": "455", "sm_89": "520", "sm_90": "520", "sm_103": "575", "sm_121": "575"}
    card = branches.get(cell["gpu"], "570" if int(cell["gpu"][3:]) >= 100 else "0")
    least = facts_of("drivers", torch["cuda"])["minimum"]
    if Version(cell["driver"]) < max(Version(least), Version(card)):
        return False
    enforced = transformers.get("torch_enforced")
    if enforced is not None and Version(cell["torch"]) < Version(enforced):
        return False
    pairs = itertools.permutations(("torch", "transformers", "triton"), 2)
    return not any(breaks_import(caller, cell[caller], callee, cell[callee]) for caller, callee in pairs)


def breaks_import(caller: str, release: str, callee: str, other: str) -> bool:
    table = read_broken_uses(caller, atlas_folder())
    if table is None or callee not in table.callees:
        return False
    callers, callees = around(release, table.releases), around(other, table.callees[callee])
    uses = [use for use in table.uses[callee] if not use.place]
    return bool(callers and callees) and all(
        any(use.reached >> at & 1 and use.callees >> beside & 1 for use in uses) for at in callers for beside in callees
    )


def around(release: str, releases: Sequence[str]) -> list[int]:
    """The place of a release, or the two places around one that was withdrawn and so not read."""
    if release in releases:
        return [releases.index(release)]
    following = bisect.bisect(list(map(Version, releases)), Version(release))
    return [following - 1, following] if 0 < following < len(releases) else []


def versions(package: str) -> list[str]:
    return list(BOOK.tables[package])


@given(
    st.fixed_dictionaries(
        {
            "torch": st.sampled_from(versions("torch")),
            "transformers": st.sampled_from(versions("transformers")),
            "triton": st.sampled_from(versions("triton")),
            "flash-attn": st.sampled_from(["none", *versions("flash-attn")]),
            "gpu": st.sampled_from(KNOWN.universe.gpus.names),
            "python": st.sampled_from(["3.9", "3.10", "3.11", "3.12", "3.13", "3.14"]),
            "driver": st.sampled_from(["470.10", "525.60.13", "550.54.14", "575.1", "580.65.06"]),
            "glibc": st.sampled_from(["2.16", "2.17", "2.27", "2.31", "2.36"]),
        }
    ),
    st.booleans(),
)
@settings(deadline=None, max_examples=600)
def test_check_agrees_with_an_oracle(cell: dict[str, str], pinned: bool):
    # Else nearly every cell is broken by triton. Where torch requires none (2.5 on Python 3.13), incidents may know
    # that a release of it does not go with this torch.
    if pinned or not tritons_of(cell["torch"], cell["python"]):
        cell["triton"] = facts_of("torch", cell["torch"])["triton"]
    packages = {name: cell[name] for name in ("torch", "transformers", "triton", "flash-attn")}
    query = {name: cell[name] for name in ("gpu", "python", "driver", "glibc")} | {"packages": packages}
    result = check_query(RULES_ALONE, query_from_document(query), KNOWN.published)
    assert (result.verdict != "broken") is oracle(cell), errors(result)
    if result.changes:
        assert oracle({**cell, **result.changes})


PACKAGES = ("torch", "triton", "flash-attn", "flash-attn-4", "xtuner", "openrlhf", "transformer-engine")


@st.composite
def queries(draw: st.DrawFn) -> Query:
    """A random combination of packages with facts, mostly broken."""
    names = [*draw(st.lists(st.sampled_from(PACKAGES), max_size=2, unique=True)), "transformers"]
    document: dict[str, Any] = {
        "packages": {name: draw(st.sampled_from(versions(name))) for name in names},
        "with": draw(st.sampled_from([{}, {"dtype": "bf16"}, {"packing": "true"}, {"model": "llama"}])),
    }
    for axis, values in {
        "gpu": ["H100", "A100", "V100", "RTX 4090", "B300", "Ampere"],
        "attn": ["sdpa", "flex", "fa2", "fa4", "sdpa-flash"],
        "driver": ["525.60.13", "550.54.14", "580.65.06"],
        "python": ["3.9", "3.11", "3.13"],
        "glibc": ["2.17", "2.36"],
    }.items():
        value = draw(st.sampled_from([None, *values]))
        if value is not None:
            document[axis] = value
    return query_from_document(document)


@given(queries())
@settings(deadline=None, max_examples=150)
def test_every_suggestion_comes_out_compatible(query: Query):
    try:
        result = check_query(KNOWN.universe, query, KNOWN.published)
    except UsageError:  # the GPUs of a family differ
        return
    if result.changes is None:
        return
    assert result.verdict == "broken"
    pins = {name: "none" if version == "none" else f"=={version}" for name, version in result.changes.items()}
    packages = tuple(replace(item, specifier=pins.get(item.name, item.specifier)) for item in query.packages)
    again = check_query(KNOWN.universe, replace(query, packages=packages), KNOWN.published)
    assert again.verdict in ("compatible", "verified"), (result.changes, errors(again))
    assert again.cell == result.cell


@pytest.mark.parametrize("cell", KNOWN.published.cells, ids=str)
def test_no_cell_of_the_matrix_is_broken(cell: Cell):
    packages = {name: version for name, version in packages_of_cell(cell).items() if version != "none"}
    result = ask(*(f"{name}=={version}" for name, version in packages.items()), gpu=cell.gpu, python=cell.python)
    # What DeepSpeed requires no artefact states before it is built.
    unknown = ["unknown"] if cell.framework.startswith("deepspeed") else []
    assert result.verdict in ("compatible", "verified", *unknown), errors(result)


@pytest.mark.parametrize(
    ("caller", "broken", "sound"),
    [
        # `from diffusers import DiffusionPipeline` needs a module that uses FLAX_WEIGHTS_NAME of transformers 4.
        ("diffusers==0.30.3", "transformers==5.2.0", "transformers==4.57.6"),
        # `__import__("pkg_resources")`, of which setuptools 82 has no more.
        ("pytorch-lightning==1.9.5", "setuptools==82.0.0", "setuptools==81.0.0"),
    ],
)
def test_what_a_package_is_for_has_to_be_importable(caller: str, broken: str, sound: str):
    ids = {f"uses:{caller.partition('=')[0]}:{broken.partition('=')[0]}"}
    assert errors(ask(caller, broken)) == ids
    assert errors(ask(caller, sound)) == set()


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["check", *words])
    caught = capsys.readouterr()
    return code, caught.out, caught.err


def test_the_json_document_has_the_documented_form(capsys: pytest.CaptureFixture[str]):
    code, out, _ = run(capsys, "--json", "torch==2.6.0", "--gpu", "V100", "triton==3.3.0")
    document = json.loads(out)
    assert code == 1
    assert document["verdict"] == "broken"
    error = document["findings"][0]
    assert set(error) == {"id", "kind", "severity", "packages", "because", "source", "confidence", "fix"}
    assert error["packages"] == {"torch": "2.6.0", "triton": "3.3.0"}
    assert document["suggestion"]["changes"]
    assert all("{" not in text for finding in document["findings"] for text in [finding["because"], *finding["source"]])


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["_torch==2.6.0"], "is not a requirement"),
        (["torch==2.6.0", "--gpu", "H1000"], "H100"),
        (["torch=>2.6"], "torch=>2.6"),
        (["torch==2.6.0", "--attn", "fa22"], "fa2"),
        (["-r", "missing.txt"], "there is no file missing.txt"),
        (["torch==2.6.0", "--driver", "new"], "580"),
        (["torch==2.6.0", "--with", "dtype"], "KEY=VALUE"),
    ],
)
def test_bad_input_is_refused_with_the_nearest_name(capsys: pytest.CaptureFixture[str], words: list[str], near: str):
    code, _, err = run(capsys, *words)
    assert code == 2
    assert near in err


def test_the_text_begins_with_the_verdict_and_the_change(capsys: pytest.CaptureFixture[str]):
    _, out, _ = run(capsys, "torch==2.6.0", "triton==3.1.0", "--gpu", "V100")
    assert out.splitlines()[:2] == ["broken", "  change: triton to 3.2.0"]


def test_what_holds_under_conditions_that_were_not_stated_is_one_line(capsys: pytest.CaptureFixture[str]):
    _, out, _ = run(capsys, "transformers==4.48.3")
    assert len(out.split()) < 60
    assert "more hold only under conditions that were not stated (attn, " in out
    assert "--all shows them" in out
    _, whole, _ = run(capsys, "transformers==4.48.3", "--all")
    assert "packed-rows-leak" in whole
    assert "not stated" not in whole
    _, document, _ = run(capsys, "transformers==4.48.3", "--json")
    assert "packed-rows-leak" in document
    # What is stated is no longer left out.
    _, stated, _ = run(capsys, "transformers==4.48.3", "--with", "packing=true", "--with", "attn=sdpa")
    assert "packed-rows-leak" in stated


@pytest.mark.parametrize(
    ("packages", "gpu", "because", "changed"),
    [
        (
            ["xformers==0.0.26.post1", "transformers==5.20.2"],
            None,
            "xformers 0.0.26.post1 needs torch==2.3.0",
            "xformers",
        ),
        (["vllm==0.23.0"], "V100", "vllm 0.23.0 needs torch==2.11.0", "vllm"),
        (["vllm==0.23.0"], "H100", "", ""),
    ],
)
def test_what_follows_from_the_list_is_held_against_the_rules(
    packages: list[str], gpu: str | None, because: str, changed: str
):
    answer = ask(*packages, gpu=gpu, python="3.11")
    assert (answer.verdict == "broken") is bool(because)
    assert any(because in finding.because for finding in answer.findings if finding.severity == "error") or not because
    assert set(answer.changes or ()) == ({changed} if changed else set())


def test_a_cell_with_another_release_than_what_follows_from_the_list_is_not_named():
    answer = ask("xformers==0.0.26.post1", "transformers==4.57.6")  # it pins torch 2.3.0, which no cell has
    assert (answer.verdict, answer.cell) == ("compatible", None)


@pytest.mark.parametrize(
    ("torchaudio", "torch", "verdict"),
    [
        ("2.11.0", "2.11.0", "compatible"),
        ("2.11.0", "2.15.0", "compatible"),
        ("2.11.0", "2.10.0", "broken"),
        ("2.11.0", "2.6.0", "broken"),
        ("2.10.0", "2.10.0", "compatible"),
        ("2.10.0", "2.11.0", "broken"),  # it pins torch
    ],
)
def test_torchaudio_without_a_pin_needs_a_torch_with_the_functions_that_it_calls(
    torchaudio: str, torch: str, verdict: str
):
    answer = ask(f"torchaudio=={torchaudio}", f"torch=={torch}")
    assert answer.verdict == verdict
    if (torchaudio, verdict) == ("2.11.0", "broken"):
        assert [finding.id for finding in answer.findings if finding.severity == "error"] == ["torchaudio-calls-torch"]
        assert answer.changes == {"torch": "2.11.0"}


@pytest.mark.parametrize(
    ("bitsandbytes", "torch", "gpu", "warned_by"),
    [
        ("0.45.5", "2.10.0", None, set()),
        ("0.45.5", "2.11.0", None, {"bitsandbytes-binary"}),
        ("0.48.0", "2.11.0", None, set()),
        ("0.47.0", "2.8.0", "V100", set()),
        ("0.46.1", "2.8.0", "V100", {"bitsandbytes-gpu"}),
    ],
)
def test_the_binaries_of_bitsandbytes(bitsandbytes: str, torch: str, gpu: str | None, warned_by: set[str]):
    result = ask(f"bitsandbytes=={bitsandbytes}", f"torch=={torch}", **({"gpu": gpu} if gpu else {}))
    assert result.verdict == "compatible"
    assert {item.id for item in result.findings if item.id.startswith("bitsandbytes-")} == warned_by


def stdin_of(text: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(text.encode()))


def test_a_requirements_file_and_stdin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    text = "torch==2.6.0\ntriton==3.3.0\nsome-private-thing==1.0\n"
    (tmp_path / "r.txt").write_text(text)
    assert run(capsys, "-r", str(tmp_path / "r.txt"))[0] == 1
    monkeypatch.setattr("sys.stdin", stdin_of(text.replace("3.3.0", "3.2.0")))
    code, out, _ = run(capsys, "-r", "-", "--json")
    assert code == 0
    document = json.loads(out)
    assert document["verdict"] == "compatible"
    assert document["unread"] == [
        {
            "package": "some-private-thing",
            "release": "1.0",
            "part": "metadata",
            "because": "nobody read what it requires",
            "matters": False,
        }
    ]
    assert document["snapshot"]
    assert document["uncovered"] == {"some-private-thing": "1.0"}
    assert document["covered"] == {"torch": "2.6.0", "triton": "3.2.0"}
    monkeypatch.setattr("sys.stdin", stdin_of("torch==2.6.0\ntriton==3.2.0\n"))
    code, out, _ = run(capsys, "-r", "-", "--json")
    assert (code, "uncovered" in json.loads(out)) == (0, False)


@pytest.mark.parametrize("name", ["tranformers", "torch-scatter"])
def test_what_nobody_read_matters_where_its_name_says_that_it_may(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "r.txt").write_text(f"torch==2.6.0\n{name}==1.0\n")
    code, out, _ = run(capsys, "-r", str(tmp_path / "r.txt"), "--json")
    [part] = json.loads(out)["unread"]
    assert (code, part["package"], part["matters"]) == (3, name, True)


def test_a_line_that_cannot_be_read_makes_the_answer_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "r.txt").write_text("-r base.txt\n-e ./mine\n")
    (tmp_path / "base.txt").write_text("torch==2.6.0\ntransformers==4.57.6\n")
    code, out, _ = run(capsys, "-r", str(tmp_path / "r.txt"), "--json")
    document = json.loads(out)
    assert (code, document["covered"]) == (3, {"torch": "2.6.0", "transformers": "4.57.6"})
    assert (document["verdict"], document["covered_verdict"]) == ("unknown", "compatible")
    because = "a local path names no version"
    assert document["unread"] == [{"file": str(tmp_path / "r.txt"), "line": 2, "text": "-e ./mine", "because": because}]
    code, out, _ = run(capsys, "-r", str(tmp_path / "r.txt"))
    assert code == 3
    assert f"  not read: {tmp_path}/r.txt:2: -e ./mine ({because})" in out.splitlines()
    covered = "  covered by facts: torch 2.6.0, transformers 4.57.6 (without the rest: compatible)"
    assert covered in out.splitlines()
    assert run(capsys, "-r", str(tmp_path / "r.txt"), "--python", "3.13t")[0] == 1
    (tmp_path / "base.txt").write_text("")
    assert run(capsys, "-r", str(tmp_path / "r.txt"))[0] == 3
    (tmp_path / "base.txt").write_text("torch==2.6.0\ntriton==3.3.0\n")
    assert run(capsys, "-r", str(tmp_path / "r.txt"))[0] == 1


@pytest.mark.parametrize(
    ("requirement", "hint"),
    [
        ("no-such-thing==2025.1", ""),
        ("torchh==2.6.0", " (did you mean torch?)"),
        ("tranformers==4.40", " (did you mean transformers?)"),
    ],
)
def test_a_package_without_facts_is_unknown(capsys: pytest.CaptureFixture[str], requirement: str, hint: str):
    code, out, _ = run(capsys, "--json", "torch==2.6.0", requirement)
    document = json.loads(out)
    name = requirement.partition("=")[0]
    assert (code, document["verdict"], list(document["uncovered"])) == (3, "unknown", [name])
    assert document["suggestion"] is None  # no cell is known to have it
    [because] = [item["because"] for item in document["findings"] if item["id"] == f"unknown:{name}"]
    assert because.startswith(f"there are no facts about {name}{hint};")


@pytest.mark.parametrize(
    ("requirements", "verdict", "because"),
    [
        (["torch==2.6.0", "torch==2.7.0"], "broken", "asked for twice, as torch==2.6.0 and as torch==2.7.0"),
        (["torch==2.6.0", "torch>=2.7"], "broken", "asked for twice"),
        (["torch<2.5", "torch>=2.7"], "broken", "asked for twice"),
        (["torch==2.6.0", "torch=none"], "broken", "asked for twice"),
        (["torch==2.6.0+cu124", "torch==2.6.0+cu126"], "broken", "as torch==2.6.0+cu124 and as torch==2.6.0+cu126"),
        (["torch==2.6.0", "peft==0.1", "peft==0.2"], "broken", "peft is asked for twice"),
        (["torch==2.6.0", "torch==2.6"], "compatible", None),
        (["torch==2.6.0", "torch>=2", "torch"], "compatible", None),
        (["torch>=2.6", "torch<2.8"], "compatible", None),
    ],
)
def test_a_package_that_is_named_twice(requirements: list[str], verdict: str, because: str | None):
    result = ask(*requirements)
    assert result.verdict == verdict
    assert because is None or because in result.findings[0].because


@pytest.mark.parametrize(
    ("requirements", "verdict", "broken_by"),
    [
        (["transformers[torch]==4.57.6", "torch==2.1.0"], "broken", "requires:transformers[torch]:torch"),
        (["transformers[torch]==4.57.6", "torch==2.6.0"], "compatible", None),
        (["transformers==4.57.6", "torch==2.1.0"], "broken", "uses:transformers:torch"),
        (["transformers==5.0.0", "accelerate==1.0.0", "torch==2.6.0"], "broken", "requires:transformers:accelerate"),
        (["transformers[torch]==4.57.6", "accelerate==0.20.0"], "broken", "requires:transformers:accelerate"),
        (["transformers[torch]==5.20.0", "accelerate==1.2.0", "torch==2.6.0"], "compatible", None),
        (["transformer-engine[pytorch]==2.20.2", "transformer-engine-torch==2.9.0"], "broken", None),
        (["transformers[vision]==4.57.6", "torch==2.6.0"], "compatible", None),
        (["transformers[torch]>=4.57", "torch==2.6.0"], "compatible", None),
        (["transformers[no-such-extra]>=4.57", "torch==2.6.0"], "compatible", None),
    ],
)
def test_the_extras_of_a_package_count(requirements: list[str], verdict: str, broken_by: str | None):
    result = ask(*requirements)
    assert result.verdict == verdict
    assert broken_by is None or broken_by in errors(result)


def test_a_suggestion_fulfils_what_an_extra_requires():
    changes = ask("transformers[torch]==4.57.6", "accelerate==0.20.0").changes
    assert changes is not None
    assert Version(changes["accelerate"]) >= Version("0.26")


def test_an_extra_that_does_not_exist_is_named():
    [warning] = [finding for finding in ask("transformers[visions]==4.57.6").findings if finding.id[:9] == "no-extra:"]
    assert "has no extra visions (did you mean vision?)" in warning.because


def test_a_driver_branch_means_any_of_its_releases():
    def ids(result: CheckAnswer) -> set[tuple[str, str]]:
        return {(item.severity, item.id) for item in result.findings}

    # The CUDA of torch 2.10 needs 525.60.13.
    branch = ask("torch==2.10.0", driver="525")
    assert branch.verdict == "compatible"
    assert ("warning", "branch:driver-for-cuda") in ids(branch)
    assert "only releases from 525.60.13 on will do" in branch.findings[0].because
    assert not any(id_.startswith("branch:") for _, id_ in ids(ask("torch==2.10.0", driver="535")))
    assert ("error", "driver-for-cuda") in ids(ask("torch==2.11.0", driver="525"))
    assert ask("torch==2.11.0", driver="580").verdict == "compatible"
    assert ask("torch==2.10.0", driver="470").verdict == "broken"


@pytest.mark.parametrize(
    ("requirement", "python", "verdict"),
    [
        ("torch==2.8.0", "3.13t", "compatible"),
        ("torch==2.6.0", "3.13t", "broken"),
        ("torch==2.8.0", "3.12t", "broken"),
        ("torch==2.8.0", "3.13", "compatible"),
        ("transformers==4.57.6", "3.13t", "compatible"),
        ("triton==3.4.0", "3.13t", "unknown"),
        ("torch", "3.13t", "compatible"),
        ("torch<2.7", "3.13t", "broken"),
    ],
)
def test_a_free_threaded_python_needs_wheels_of_its_own(requirement: str, python: str, verdict: str):
    result = ask(requirement, python=python)
    assert result.verdict == verdict
    if verdict == "broken":
        assert f"has no wheel for Python {python} (free-threaded)" in result.findings[0].because


def test_a_batch_answers_each_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    lines = [
        '{"packages": {"torch": "2.6.0", "triton": "3.2.0"}}',
        "not json",
        '{"packages": {"torch": "2.6.0"}, "gpu": "H1000"}',
        '{"packages": {"torch": "2.6.0"}, "gpu": "V100", "with": {"dtype": "bf16"}}',
        '{"packages": {"torch": "2.99"}}',
    ]
    (tmp_path / "q.jsonl").write_text("\n".join(lines) + "\n")
    code, out, _ = run(capsys, "--batch", str(tmp_path / "q.jsonl"), "--json")
    answers = [json.loads(line) for line in out.splitlines()]
    assert code == 2
    assert [answer.get("verdict", answer.get("exit")) for answer in answers] == [
        "compatible",
        2,
        2,
        "broken",
        "unknown",
    ]


@pytest.mark.parametrize(
    ("constraint", "verdict"),
    [("tokenizers<0.20", "broken"), ("tokenizers>=0.22", "compatible"), ("trl<0.1", "compatible")],
)
def test_a_constraint_holds_where_something_of_the_list_requires_the_package(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], constraint: str, verdict: str
):
    (tmp_path / "c.txt").write_text(constraint)
    (tmp_path / "r.txt").write_text("transformers==4.57.6\n-c c.txt\n")
    _, out, _ = run(capsys, "-r", str(tmp_path / "r.txt"), "--python", "3.11", "--json")
    assert json.loads(out)["verdict"] == verdict


def test_a_constraint_without_metadata_is_said_not_to_be_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "c.txt").write_text("nobody-has-this<1")
    (tmp_path / "r.txt").write_text("torch==2.6.0\n-c c.txt\n--pre\n")
    _, out, _ = run(capsys, "-r", str(tmp_path / "r.txt"), "--python", "3.11", "--json")
    [unread] = json.loads(out)["unread"]
    assert (unread["package"], unread["because"]) == ("nobody-has-this", "the constraint on it was not looked at")
    notes = json.loads(out)["notes"]
    assert any("--pre (line 3)" in note for note in notes)


def test_extras_and_groups_need_a_file_that_has_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "x"\ndependencies = ["torch==2.6.0"]\n[dependency-groups]\nfast = ["triton==3.3.0"]\n'
    )
    assert run(capsys, "-r", str(tmp_path / "pyproject.toml"))[0] == 0
    assert run(capsys, "-r", str(tmp_path / "pyproject.toml"), "--group", "fast")[0] == 1
    assert run(capsys, "torch==2.6.0", "--extra", "fast")[0] == 2


def test_the_facts_of_side_packages_count_only_for_a_query_that_names_them():
    named = Query(packages=(PackageSpec(name="numpy", specifier="<2"),))
    assert "numpy" not in KNOWN.universe.packages
    assert "numpy" in KNOWN.for_query(named).packages
    assert "numpy" not in KNOWN.for_query(Query(), whole=True).packages
    assert KNOWN.for_query(Query(), whole=True) is KNOWN.universe


def test_a_requirement_holds_on_the_pythons_of_its_marker_only():
    """Torch 2.5.1 requires triton==3.1.0 with python_version < "3.13"; no triton 3.1.0 has a wheel for 3.13."""
    assert ask("torch==2.5.1", python="3.13").verdict == "compatible"
    assert ask("torch==2.5.1", "triton==3.2.0", python="3.13").verdict == "compatible"
    broken = ask("torch==2.5.1", "triton==3.2.0", python="3.12")
    assert (broken.verdict, broken.changes) == ("broken", {"triton": "3.1.0"})
    assert [finding.id for finding in broken.findings if finding.severity == "error"] == ["requires:torch:triton"]


def test_what_a_rule_needs_besides_may_be_installed():
    """transformer-engine 1.11 looks up flash-attn when it is imported; the query leaves open which one is there."""
    assert ask("transformer-engine==1.11.0", "torch==2.4.0", python="3.10").verdict == "compatible"


def test_a_query_reads_the_facts_of_frameworks_that_it_names_and_of_what_they_require():
    known = knowledge.load_knowledge()
    asked = parse_requirement("transformer-engine-torch==2.1.0")
    assert asked is not None
    packages = known.for_query(Query(packages=(asked,))).packages
    assert {"torch", "transformer-engine-torch", "transformer-engine-cu12"} <= set(packages)
    assert not {"xtuner", "openrlhf", "xformers"} & set(packages)
    assert "xtuner" in known.for_query(Query(packages=(asked,), conditions={"model": "llama"})).packages


@pytest.mark.parametrize(
    ("package", "torch", "broken"),
    [
        # torch 2.14 is the first whose headers demand C++20; each pair was tried with g++ 12 (docs/decisions/0407)
        ("flash-attn==2.8.3.post2", "2.13.0", False),
        ("flash-attn==2.8.3.post2", "2.14.0", True),
        ("causal-conv1d==1.7.0", "2.13.0", False),
        ("causal-conv1d==1.7.0", "2.14.1", True),
        ("mamba-ssm==2.3.2.post1", "2.14.1", True),
        # it leaves the flag to torch
        ("transformer-engine-torch==2.20.2", "2.14.1", False),
        ("gptqmodel==7.7.0", "2.14.1", False),
    ],
)
def test_what_cannot_be_compiled_against_a_torch(package: str, torch: str, *, broken: bool):
    finding = f"build:{package.partition('==')[0]}:torch"
    assert (finding in errors(ask(package, f"torch=={torch}"))) == broken
    assert finding not in errors(ask(package, f"torch=={torch}", used={"wheel": "true"}))


def test_a_wheel_that_is_named_need_not_be_compiled():
    wheel = "flash_attn-2.8.3+cu13torch2.14cxx11abiTRUE-cp311-cp311-linux_x86_64.whl"
    assert not errors(ask(wheel, "torch==2.14.1"))


def test_operators_that_are_compiled_when_they_are_used_are_a_warning():
    found = ask("deepspeed==0.14.0", "torch==2.14.1").findings
    assert [item.severity for item in found if item.id == "build:deepspeed:torch"] == ["warning"]


def test_whether_a_wheel_for_another_minor_release_loads_is_unknown():
    # torchvision 0.25.0, compiled against 2.10, was seen loading on 2.11 and 2.12 (docs/decisions/0407)
    result = ask("flash-attn==2.8.3+cu13torch2.10cxx11abiTRUE", "torch==2.11.0")
    assert result.verdict == "unknown"
    assert [item.id for item in result.findings if item.id.startswith("unknown:")] == ["unknown:wheel-torch-minor"]
    same = ask("flash-attn==2.8.3+cu13torch2.11cxx11abiTRUE", "torch==2.11.0")
    assert same.verdict == "compatible"


def test_what_only_rules_and_requirements_together_exclude_is_broken():
    """Torchvision 0.29.2 needs torch 2.14, which is built with CUDA 13, whose driver is 580 or newer."""
    answer = ask("torchvision==0.29.2", driver="560.35.03", python="3.11")
    [error] = [finding for finding in answer.findings if finding.severity == "error"]
    assert error.id == "collision:driver+torchvision"
    assert "torchvision 0.29.2 needs torch>=2.14.0; torch" in error.because
    assert ask("torchvision==0.29.2", driver="580.65.06", python="3.11").verdict == "compatible"


def test_a_release_without_facts_that_would_do_is_no_contradiction():
    """Tokenizers 0.13 goes with a transformers that is older than those with facts."""
    assert ask("trl==0.7.1", "tokenizers==0.13.3", python="3.10").verdict == "compatible"


@pytest.mark.parametrize(
    ("release", "model", "code"),
    [
        ("==4.55.4", "qwen3_next", 1),
        ("==4.57.1", "qwen3_next", 0),
        ("==4.57.0", "qwen3_next", 0),  # withdrawn, so it was not read: the release after it has it
        ("==4.40.0", "gemma3", 1),
        ("==5.0.0", "qwen3_5", 1),
        ("<4.50", "gemma3", 1),
        ("==4.40.0", "mamba", 0),  # a model that no rule names
    ],
)
def test_a_release_has_the_model_or_the_answer_says_since_when(
    capsys: pytest.CaptureFixture[str], release: str, model: str, code: int
):
    got, out, _ = run(capsys, f"transformers{release}", "--with", f"model={model}", "--json")
    document = json.loads(out)
    assert (got, document["verdict"]) == (code, "broken" if code else "compatible")
    if code:
        assert f"transformers has the model type {model} since" in document["findings"][0]["because"]
        assert document["suggestion"]["changes"].keys() == {"transformers"}


def test_what_a_package_is_for_is_an_error_although_its_import_succeeds(capsys: pytest.CaptureFixture[str]):
    code, out, _ = run(capsys, "trl==0.25.1", "vllm==0.12.0", "--json")
    [finding] = [item for item in json.loads(out)["findings"] if item["id"] == "uses:trl:vllm"]
    assert (code, finding["severity"]) == (1, "error")
    assert "fails at `from trl import GRPOTrainer" in finding["because"]


def test_a_kernel_of_the_hub_is_unread(capsys: pytest.CaptureFixture[str]):
    name = "kernels-community/flash-attn2"
    code, out, _ = run(capsys, "torch==2.9.0", "transformers==4.57.6", "--attn", name, "--json")
    document = json.loads(out)
    assert (code, document["verdict"]) == (3, "unknown")
    assert [part["package"] for part in document["unread"]] == [name]
    assert f"--attn {name}" in document["next"]["command"]


def test_what_an_installer_takes_today_is_a_warning_beside_what_exists(capsys: pytest.CaptureFixture[str]):
    code, out, _ = run(capsys, "bitsandbytes==0.45.0", "--json")
    document = json.loads(out)
    warnings = [item for item in document["findings"] if item["id"].startswith("installed:")]
    assert (code, document["verdict"]) == (0, "compatible")
    assert warnings
    assert all(item["because"].startswith("an installer takes ") and item["severity"] == "warning" for item in warnings)


@pytest.mark.parametrize(("release", "matters"), [("0.21.1", False), ("0.26.0", True)])
def test_names_that_the_atlas_lacks_matter_beside_a_much_newer_package(
    capsys: pytest.CaptureFixture[str], release: str, *, matters: bool
):
    code, out, _ = run(capsys, "diffusers==0.24.0", f"huggingface-hub=={release}", "--json")
    [part] = json.loads(out)["unread"]
    assert (code, part["package"], part["part"], part["matters"]) == (3 * matters, "diffusers", "names", matters)


@pytest.mark.parametrize(("repository", "code"), [("openai/nobody-has-this", 0), ("huggingface/peft", 3)])
def test_a_repository_matters_where_its_package_is_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], repository: str, code: int
):
    (tmp_path / "r.txt").write_text(f"torch==2.6.0\ngit+https://example.org/{repository}.git\n")
    got, out, _ = run(capsys, "-r", str(tmp_path / "r.txt"), "--json")
    assert (got, [line["line"] for line in json.loads(out)["unread"]]) == (code, [2])
