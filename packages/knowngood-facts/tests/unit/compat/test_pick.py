"""`pick` on the real facts: cells are valid, conflicts are minimal, relaxations open a solution."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from packaging.version import Version

from knowngood.cli.main import main
from knowngood.core.attention import parse_attention
from knowngood.core.cell import Cell, parse_cell
from knowngood.core.hosts import HostArchitecture
from knowngood_facts.compat import knowledge
from knowngood_facts.compat.check_answer import check_query
from knowngood_facts.compat.pick_answer import PickAnswer, count_combinations, pick_cells
from knowngood_facts.compat.query import Query, parse_requirement, query_from_document

KNOWN = knowledge.load_knowledge()
BOOK = KNOWN.universe.space.book


def ask(*requirements: str, gpu: str | None = None, attn: str | None = None, **more: Any) -> PickAnswer:
    packages = tuple(wanted for text in requirements if (wanted := parse_requirement(text)))
    setting = None if attn is None else parse_attention(attn)
    used = more.pop("used", {})
    request = Query(gpu=gpu, attn=setting, axes=more, conditions=used, packages=packages)
    return pick_cells(KNOWN.for_query(request, cells=True), request, KNOWN.published)


def query_of(cell: Cell) -> dict[str, Any]:
    packages = {"torch": cell.torch, "transformers": cell.transformers, "triton": cell.triton}
    packages[cell.flash_attn_package or "flash-attn"] = cell.flash_attn
    return {"gpu": cell.gpu, "python": cell.python, "packages": packages}


def test_published_cells_come_first():
    picked = ask()
    assert picked.exit_code == 0
    assert picked.choices[0].published
    assert str(picked.choices[0].cell) in {str(cell) for cell in KNOWN.published.cells}


def test_only_a_query_with_a_framework_gets_cells_with_one():
    request = Query(gpu="H100", attn=None, axes={}, conditions={}, packages=())
    choices = pick_cells(KNOWN.universe, request, KNOWN.published, count=1000).choices
    assert len(choices) > 3
    assert not [choice.cell for choice in choices if choice.cell.framework_pin]
    assert ask("xtuner==0.2.0", gpu="H100").choices[0].cell.framework_pin == ("xtuner", "0.2.0")


@pytest.mark.parametrize("text", ["transformers==4.46.0", "transformers==5.0.0rc3"])
def test_a_yanked_release_and_a_pre_release_are_picked_only_by_their_exact_version(text: str):
    version = text.partition("==")[2]
    assert ask(text).choices[0].cell.transformers == version
    assert version not in [choice.cell.transformers for choice in ask(text.replace("==", ">=")).choices]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_no_more_cells_are_picked_than_requested(count: int):
    request = Query(gpu=None, attn=None, axes={}, conditions={}, packages=())
    assert len(pick_cells(KNOWN.universe, request, KNOWN.published, count=count).choices) == count


def test_a_query_without_a_published_cell_gets_the_newest_valid_cell():
    [choice] = ask("transformers==5.3.0", gpu="V100").choices
    assert (choice.cell.gpu, choice.cell.torch, choice.cell.flash_attn) == ("sm_70", "2.10.0", "0")
    assert not choice.published


def test_what_the_query_leaves_open_is_of_the_time_of_what_it_states():
    # 4.44.2 was the newest transformers until 2024-09-25; torch 2.4.1 is of 2024-09-04 and 2.10.0 of 2026.
    assert [choice.cell.torch for choice in ask("transformers==4.44.2", gpu="V100").choices] == ["2.4.1"]
    assert {choice.cell.transformers for choice in ask("torch==2.3.0", gpu="H100").choices} == {"4.41.2", "4.42.0"}
    # torch 2.10.0 is the newest for a V100 and not the newest, so that the newest transformers is not of its time.
    new = [choice.cell for choice in ask(gpu="V100").choices if not choice.published]
    assert [(cell.torch, cell.transformers) for cell in new] == [("2.10.0", "5.3.0")]


def test_what_needs_no_compiler_comes_first_among_equals():
    new = [choice.cell.flash_attn_package for choice in ask(gpu="B300").choices]
    assert new == ["flash-attn-4", None, "flash-attn"]
    ranked = [cell for cell in KNOWN.published.ranked if cell.gpu == "sm_90" and cell.transformers == "4.57.6"]
    assert [cell.flash_attn for cell in ranked if not cell.framework_pin] == ["0", "2.8.3.post2"]


def test_an_unbuilt_cell_has_no_release_that_an_incident_warns_of():
    # incidents/flash-attn-4-max-seqlen-tensor.yaml: packed rows fail from 4.0.0b34 on
    assert ask(gpu="B300").choices[0].cell.flash_attn == "4.0.0b33"
    assert ask("flash-attn-4==4.0.0b36", gpu="B300").choices[0].cell.flash_attn == "4.0.0b36"


def test_no_flash_attention_is_offered_that_its_transformers_does_not_use():
    cells = [choice.cell for choice in ask("transformers==4.57.6", gpu="B200").choices]
    assert cells
    assert "flash-attn-4" not in [cell.flash_attn_package for cell in cells]


def test_an_a100_gets_its_newest_cell():
    newest = max((cell.torch for cell in KNOWN.published.cells if cell.gpu == "sm_80"), key=Version)
    assert ask(gpu="A100").choices[0].cell.torch == newest


@pytest.mark.parametrize(
    ("gpu", "attn", "card", "setting"), [("GH200", "fa2", "H100", "sdpa"), ("GB10", "fa4", "sm_120", "sdpa")]
)
def test_giving_up_one_demand_on_a_host_of_arm(gpu: str, attn: str, card: str, setting: str):
    changes = [clash.relax["change"] for clash in ask(gpu=gpu, attn=attn).conflict if clash.relax]
    assert changes == [{"gpu": card}, {"attn": setting}]


def test_an_attention_setting_brings_its_package():
    assert ask(gpu="H100", attn="fa4").choices[0].cell.flash_attn_package == "flash-attn-4"
    assert ask(gpu="A100", attn="fa2").choices[0].cell.flash_attn_package == "flash-attn"


def test_a_framework_brings_what_it_requires():
    [choice] = ask("openrlhf==0.11.2", gpu="A100").choices
    assert choice.extras["openrlhf"] == "0.11.2"
    assert (choice.cell.transformers, choice.cell.flash_attn) == ("5.15.0", "2.8.3")


def test_a_conflict_has_rules_and_relaxations():
    picked = ask("transformers==5.17.0", gpu="V100", attn="fa2")
    assert picked.exit_code == 1
    assert {clash.demand for clash in picked.conflict} == {"gpu=V100", "attn=fa2"}
    for clash in picked.conflict:
        assert clash.rules
        assert all(rule["source"] and "{" not in rule["because"] for rule in clash.rules)
        assert clash.relax is not None
        parse_cell(clash.relax["cell"])


def test_releases_that_cannot_be_imported_together_are_not_picked():
    # transformers 4.56.0 to 4.57.6 use a function that torch 2.1 lacks; seen failing in an environment.
    for choice in ask("triton==2.1.0").choices:
        assert Version(choice.cell.transformers) < Version("4.56")
    picked = ask("torch==2.1.2", "transformers>=4.56")
    assert {clash.demand for clash in picked.conflict} == {"torch==2.1.2", "transformers>=4.56"}
    assert "uses:transformers:torch" in [rule["id"] for clash in picked.conflict for rule in clash.rules]


def test_a_pinned_package_without_facts_excludes_what_it_cannot_be_imported_with():
    assert {choice.cell.transformers for choice in ask("trl==0.7.11").choices} == {"4.38.2"}
    picked = ask("trl==0.7.11", "transformers==4.57.6")
    assert picked.exit_code == 1
    relaxed = {clash.demand: clash.relax["change"] for clash in picked.conflict if clash.relax}
    assert relaxed == {"trl==0.7.11": {"trl": "0.8.0"}, "transformers==4.57.6": {"transformers": "4.38.2"}}
    [rule] = next(clash.rules for clash in picked.conflict if clash.demand == "trl==0.7.11")
    assert rule["id"] == "uses:trl:transformers"


def test_what_follows_from_a_pin_excludes_what_it_cannot_be_imported_with():
    # torchtune 0.2.0 pins torchao 0.3.1, which uses what torch 2.5 lacks.
    for choice in ask("torchtune==0.2.0").choices:
        assert Version(choice.cell.torch) < Version("2.5")


def test_two_families_of_flash_attention_do_not_fit_in_a_cell():
    picked = ask("flash-attn==2.6.3", "flash-attn-4==4.0.0b36")
    assert picked.exit_code == 1
    assert {clash.demand for clash in picked.conflict} == {"flash-attn==2.6.3", "flash-attn-4==4.0.0b36"}


def test_what_facts_do_not_cover_is_unknown():
    assert ask("torch==2.99").exit_code == 3


def test_the_universe_is_large():
    assert count_combinations(KNOWN.universe) > 10**7


PACKAGES = ("torch", "transformers", "triton", "flash-attn", "xtuner", "openrlhf")


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    query: dict[str, Any] = {"packages": {}}
    for name in draw(st.lists(st.sampled_from(PACKAGES), unique=True, max_size=4)):
        version = draw(st.sampled_from(BOOK.versions(name)))
        query["packages"][name] = draw(st.sampled_from(["==", ">=", "<="])) + version
    if draw(st.booleans()):
        query["gpu"] = draw(st.sampled_from(KNOWN.universe.gpus.names))
    if draw(st.booleans()):
        query["attn"] = draw(st.sampled_from(["sdpa", "flex", "fa2", "fa4", "sdpa-flash"]))
    if draw(st.booleans()):
        query["driver"] = draw(st.sampled_from(["470.10", "535.104.05", "580.65.06"]))
    if draw(st.booleans()):
        query["python"] = draw(st.sampled_from(["3.9", "3.11", "3.14"]))
    return query


def without(query: dict[str, Any], demand: str) -> dict[str, Any]:
    rest = json.loads(json.dumps(query))
    for name in ("gpu", "attn", "driver", "python"):
        if demand.startswith(f"{name}="):
            rest.pop(name)
    for name, specifier in query["packages"].items():
        wanted = parse_requirement(name + specifier)
        if wanted is not None and demand == wanted.text:
            rest["packages"].pop(name)
    return rest


@given(requests())
@example({"packages": {"torch": ">=2.0.0", "triton": "==3.7.0"}, "driver": "470.10"})  # torch>=2.0.0 means every torch
@settings(deadline=None, max_examples=120)
def test_picked_cells_are_valid_and_conflicts_minimal(query: dict[str, Any]):
    picked = pick_cells(KNOWN.universe, query_from_document(query), KNOWN.published)
    for choice in picked.choices:
        found = check_query(KNOWN.universe, query_from_document(query_of(choice.cell)), KNOWN.published)
        assert found.verdict in ("compatible", "verified"), found.findings
    assert bool(picked.choices) is not bool(picked.conflict)
    alone: dict[str, Any] = {"packages": {}}
    for clash in picked.conflict:
        less = without(query, clash.demand)
        # Nothing of the conflict can be left out: without one of its demands the others can be met.
        others = {other.demand for other in picked.conflict} - {clash.demand}
        for demand in [demand for demand in demands_of(less) if demand not in others]:
            less = without(less, demand)
        assert pick_cells(KNOWN.universe, query_from_document(less), KNOWN.published).choices, (clash.demand, less)
        alone = query
    if picked.conflict:
        names = {clash.demand for clash in picked.conflict}
        for demand in [demand for demand in demands_of(alone) if demand not in names]:
            alone = without(alone, demand)
        assert not pick_cells(KNOWN.universe, query_from_document(alone), KNOWN.published).choices


def demands_of(query: dict[str, Any]) -> list[str]:
    named = [f"{name}={query[name]}" for name in ("gpu", "attn", "driver", "python") if name in query]
    texts = [parse_requirement(name + specifier) for name, specifier in query["packages"].items()]
    return [*named, *(wanted.text for wanted in texts if wanted is not None)]


@given(requests())
@example({"packages": {}, "gpu": "sm_89", "driver": "470.10"})  # sm_87 is near, and its hosts are of Arm
@settings(deadline=None, max_examples=60)
def test_a_relaxation_opens_a_solution(query: dict[str, Any]):
    picked = pick_cells(KNOWN.universe, query_from_document(query), KNOWN.published)
    for clash in picked.conflict:
        if clash.relax is not None:
            less = without(query, clash.demand)
            [(name, value)] = clash.relax["change"].items()
            if name in PACKAGES or name == "flash-attn-4":
                less["packages"][name] = value
            else:
                less[name] = value
            assert pick_cells(KNOWN.universe, query_from_document(less), KNOWN.published).choices


def test_the_command(capsys: pytest.CaptureFixture[str]):
    assert main(["pick", "--gpu", "V100", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["cells"][0]["id"].startswith("sm70-")
    assert main(["pick", "--gpu", "V100", "--attn", "fa2"]) == 1
    assert "the nearest that works" in capsys.readouterr().out
    assert main(["pick", "tranformers>=4"]) == 3
    assert "did you mean transformers?" in capsys.readouterr().out


def test_nothing_is_picked_for_a_gpu_of_another_maker():
    answer = ask("torch==2.6.0", gpu="gfx942")
    assert (answer.exit_code, answer.choices) == (3, ())
    assert answer.findings[0].because.startswith("AMD is not covered")


def test_nothing_is_picked_for_a_package_that_is_asked_for_twice():
    answer = ask("torch==2.6.0", "torch==2.7.0")
    assert (answer.exit_code, answer.choices) == (1, ())
    assert "asked for twice" in answer.findings[0].because


@pytest.mark.parametrize(
    ("requirements", "extras", "transformers"),
    [
        (["xtuner"], {"xtuner": "0.2.0"}, "4.48.0"),
        (["xtuner", "torch==2.15.0"], {"xtuner": "0.2.0"}, "4.48.0"),
        (["openrlhf", "torch==2.13.0"], {"openrlhf": "0.11.2"}, "5.15.0"),
        (["xtuner<=0.1.21"], {"xtuner": "0.1.21"}, "4.42.4"),
    ],
)
def test_a_framework_is_the_newest_that_fits_before_other_packages_are(
    requirements: list[str], extras: dict[str, str], transformers: str
):
    request = Query(gpu="H100", packages=tuple(filter(None, map(parse_requirement, requirements))))
    new = [choice for choice in pick_cells(KNOWN.universe, request, KNOWN.published, count=9).choices if choice.extras]
    assert new
    assert all(choice.extras == extras and choice.cell.transformers == transformers for choice in new)


def test_an_outgrown_release_of_a_framework_is_not_offered():
    picked = ask("xtuner", "transformers==5.23.0", gpu="H100")
    assert not picked.choices
    assert {clash.demand for clash in picked.conflict} == {"xtuner", "transformers==5.23.0"}
    assert "outgrown:xtuner:transformers" in {rule["id"] for clash in picked.conflict for rule in clash.rules}


def test_an_outgrown_release_that_is_named_comes_with_a_warning():
    [choice, *_] = ask("xtuner==0.1.11", "transformers==5.23.0", gpu="H100").choices
    assert [finding.severity for finding in choice.findings if finding.id.startswith("outgrown:")] == ["warning"]


def test_a_python_that_a_base_has_comes_before_the_newest_torch():
    assert ask("xtuner==0.1.21", gpu="H100").choices[0].cell.python == "3.9"


@pytest.mark.parametrize(
    ("gpu", "sm"),
    [("GH200", "sm_90"), ("GB200", "sm_100"), ("GB10", "sm_121"), ("DGX Spark", "sm_121"), ("sm_121", "sm_121")],
)
def test_only_cells_of_aarch64_are_offered_for_a_host_with_a_cpu_of_arm(gpu: str, sm: str):
    picked = ask(gpu=gpu)
    assert {(choice.cell.gpu, choice.cell.host, choice.published) for choice in picked.choices} == {
        (sm, HostArchitecture.AARCH64, True)
    }
    cell = picked.choices[0].cell
    document = {"gpu": gpu, "packages": {"torch": cell.torch, "transformers": cell.transformers}}
    checked = check_query(KNOWN.universe, query_from_document(document), KNOWN.published)
    assert (checked.verdict, checked.cell) == ("compatible", str(cell))
    assert "host:aarch64" not in {finding.id for finding in checked.findings}


@pytest.mark.parametrize("gpu", ["H100", "B200", "GH200 480GB"])
def test_a_stated_host_decides_which_cells_are_offered(gpu: str):
    request = replace(query_from_document({"gpu": gpu, "packages": {}}), conditions={"machine": "arm64"})
    hosts = {choice.cell.host for choice in pick_cells(KNOWN.universe, request, KNOWN.published).choices}
    assert hosts == {HostArchitecture.AARCH64}
    plain = replace(request, conditions={"machine": "x86-64"})
    picked = pick_cells(KNOWN.universe, plain, KNOWN.published)
    if gpu.startswith("GH200"):
        assert "nothing for x86-64 runs" in picked.findings[0].because
        assert picked.exit_code == 1
    else:
        assert {choice.cell.host for choice in picked.choices} == {HostArchitecture.X86_64}


def test_a_package_without_a_wheel_for_the_host_is_a_finding():
    document = {"gpu": "GH200", "packages": {"torch": "2.11.0", "xformers": "0.0.35"}}
    checked = check_query(KNOWN.universe, query_from_document(document), KNOWN.published)
    [finding] = [finding for finding in checked.findings if finding.id == "wheel:aarch64:xformers"]
    assert finding.because == (
        "xformers 0.0.35 has no wheel for Linux on aarch64, only its source archive, which is compiled there"
    )
    on_x86 = query_from_document({**document, "gpu": "H100"})
    ids = {finding.id for finding in check_query(KNOWN.universe, on_x86, KNOWN.published).findings}
    assert "wheel:aarch64:xformers" not in ids


def test_what_is_not_known_of_a_host_with_a_cpu_of_arm_is_said():
    gpu = "GB300"
    picked = ask(gpu=gpu)
    assert (picked.choices, picked.exit_code) == ((), 1)
    assert picked.findings[0].severity == "error"
    assert "aarch64" in picked.findings[0].because
    document = {"gpu": gpu, "packages": {"torch": "2.15.0", "transformers": "5.17.0"}}
    checked = check_query(KNOWN.universe, query_from_document(document), KNOWN.published)
    assert checked.verdict == "unknown"
    assert checked.cell is None
    assert [finding.severity for finding in checked.findings if finding.id == "host:aarch64"] == ["warning"]


def test_a_demand_that_no_cell_for_the_host_meets_is_in_the_conflict():
    picked = ask("torch==2.11.0", gpu="DGX Spark")
    assert [clash.demand for clash in picked.conflict] == ["gpu=DGX Spark", "torch==2.11.0"]
    assert picked.exit_code == 1


@pytest.mark.parametrize("gpu", ["H100", "Hopper", "sm_90", "Ampere", "Blackwell", "B200"])
def test_other_gpus_have_hosts_for_the_images(gpu: str):
    assert ask(gpu=gpu).choices


@pytest.mark.parametrize("package", ["no-such-package==0.9.0", "no-such-package"])
def test_a_package_without_facts_is_exit_3_although_a_cell_fits_the_rest(package: str):
    picked = ask(package, gpu="H100")
    assert picked.choices
    assert picked.exit_code == 3


def test_a_choice_says_what_is_known_of_the_setting():
    states = [choice.setting for choice in ask(gpu="H100", attn="fa2").choices]
    assert states[0] is not None
    assert states[0].text == "seen training on a GPU of this architecture"
    assert states[0].limits
    assert states[1] is not None
    assert states[1].text == "predicted to train; unseen"
    assert [choice.setting for choice in ask(gpu="H100").choices] == [None] * 3


def test_a_change_is_suggested_for_a_host_with_a_cpu_of_arm():
    document = {"gpu": "GH200", "packages": {"torch": "2.6.0", "triton": "3.1.0"}}
    checked = check_query(KNOWN.universe, query_from_document(document), KNOWN.published)
    assert checked.verdict == "broken"
    assert checked.changes


def test_what_is_not_known_to_fit_is_no_contradiction():
    """Nothing is known of flash-attn-3, which has no release; on a V100 other rules exclude FlashAttention 3."""
    known = knowledge.load_knowledge()
    query = query_from_document({"attn": "fa3"})
    unsure = pick_cells(known.for_query(query, cells=True), query, known.published)
    assert (unsure.exit_code, [clash.demand for clash in unsure.conflict]) == (3, ["attn=fa3"])
    query = query_from_document({"attn": "fa3", "gpu": "V100"})
    sure = pick_cells(known.for_query(query, cells=True), query, known.published)
    assert (sure.exit_code, {clash.demand for clash in sure.conflict}) == (1, {"attn=fa3", "gpu=V100"})


def test_a_build_of_torch_from_another_index_is_unread_and_its_release_is_offered():
    picked = ask("torch==2.7.1+cu128", gpu="H100")
    assert (picked.exit_code, {choice.cell.torch for choice in picked.choices}) == (3, {"2.7.1"})
    assert [(part.package, part.release) for part in picked.coverage.parts] == [("torch", "2.7.1+cu128")]


def test_a_cell_that_is_picked_for_a_model_has_it():
    picked = ask(gpu="H100", used={"model": "qwen3_5"})
    assert picked.choices
    assert all(Version(choice.cell.transformers) >= Version("5.2.0") for choice in picked.choices)
    conflict = ask("transformers==4.40.0", gpu="A100", used={"model": "gemma3"}).findings
    assert [finding.id for finding in conflict if finding.severity == "error"] == ["model-type:gemma3"]
