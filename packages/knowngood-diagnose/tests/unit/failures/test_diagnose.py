"""Diagnosis of logs: what is recognized, in which forms of log, and what is not claimed."""

from __future__ import annotations

import io
import json
import random
import re
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet

from knowngood.cli.main import main
from knowngood.core import gpus
from knowngood_diagnose.failures.diagnosis import LogKnowledge, diagnose_log
from knowngood_diagnose.failures.logs.log_scan import BLOCK, SignatureScan, strip_digits
from knowngood_diagnose.failures.names.atlas_shelf import AtlasShelf
from knowngood_diagnose.failures.names.name_causes import explain_names
from knowngood_facts.compat.incident import Fix, SignatureError, compile_signature, normalize_log
from knowngood_facts.compat.rule_files import load_incidents
from knowngood_facts.facts import atlas_lookup

KNOWN = {incident.id: incident for incident in load_incidents() if incident.signatures}
GPUS = gpus.gpu_catalog_from_sections(
    {"sm_70": {"family": "Volta", "cards": ["V100"]}, "sm_90": {"family": "Hopper", "cards": ["H100"]}}
)
XTUNER = "[rank1]: AttributeError: 'Qwen2FlashAttention2' object has no attribute '_flash_attention_forward'\n"
SOFTCAP = "TypeError: _flash_attn_varlen_backward() missing 1 required positional argument: 'softcap'\n"


def found(log, known=None):
    data = log if isinstance(log, bytes) else log.encode()
    return diagnose_log(io.BytesIO(data), list((known or KNOWN).values()), GPUS)


def ids(log):
    return [match.incident.id for match in found(log).matches]


def explain_by_atlas(errors, versions):
    packages = atlas_lookup.list_atlas_packages()
    shelf = AtlasShelf(open=atlas_lookup.open_atlas, owner=atlas_lookup.find_owner, packages=packages)
    return explain_names(errors, versions, shelf)


ATLAS_ALONE = LogKnowledge(explain_names=explain_by_atlas, explain_error=lambda *given: next(iter(given[2]), None))


def sample(text):
    """A line that shows a signature."""
    shapes = {"version": "2.8.3", "number": "11040", "name": "Some", "word": "some/place", "text": "some words"}
    filled = re.sub(r"\{([a-z]+)\d?\}", lambda slot: shapes[slot[1]], text)
    return re.sub(r"(?<!\\)\*", "XyZ", filled).replace("\\*", "*")


def log_of(incident, *, line=None):
    text = line or sample(incident.signatures[0].text)
    context = " ".join(sample(item.text) for item in (*incident.context[:1], *incident.signatures[0].beside[:1]))
    return f"Traceback (most recent call last):\n  {context}\n{text}\n"


def test_each_incident_is_found_by_its_own_signature():
    breaches = []
    for name, incident in KNOWN.items():
        is_guess = incident.severity == "silent" and bool(incident.affected)  # without its versions
        if (name in ids(log_of(incident))) == is_guess:
            breaches.append(f"{name} is {'guessed without its versions' if is_guess else 'not found'}")
    assert not breaches, "\n".join(breaches)


def test_each_failure_is_found_in_every_form_of_log():
    breaches = []
    for name, incident in KNOWN.items():
        if incident.severity != "failure":
            continue
        line, log = sample(incident.signatures[0].text), log_of(incident)
        bent = [
            f"\x1b[31m\x1b[1m{line}\x1b[0m",
            f"[rank7]: {line}",
            f"(EngineCore_DP0 pid=269) ERROR 10-10 20:06:26 [core.py:708] {line}",
            line.replace("'", "\u2019"),
        ]
        logs = [
            *(log_of(incident, line=text) for text in bent),
            log.replace("\n", "\r\n"),
            log.encode("utf-16"),
            json.dumps({"message": log}) + "\n",
        ]
        breaches += [f"{name} is not found in {text!r}" for text in logs if name not in ids(text)]
    assert not breaches, "\n".join(breaches)


@pytest.mark.parametrize("width", [72, 80, 100, 120])
def test_a_wrapped_line_is_read(width):
    text = (
        "[rank1]: "
        + "x" * 23
        + " AttributeError: 'Qwen2FlashAttention2' object has no attribute '_flash_attention_forward'"
    )
    wrapped = "\n".join(
        ("" if start == 0 else "[rank1]: ") + text[start : start + width] for start in range(0, len(text), width)
    )
    assert ids(wrapped) == ["xtuner-qwen2-flash-attention-forward"]


def test_versions_confirm_and_exclude():
    seen = found("xtuner==0.1.23\ntransformers==4.44.2\n" + XTUNER).matches[0]
    assert seen.confirmed
    assert seen.versions_seen == {"xtuner": "0.1.23", "transformers": "4.44.2"}
    excluded = found("xtuner==0.1.23\ntransformers==4.42.4\n" + XTUNER)
    assert not excluded.matches
    assert excluded.excluded == ("xtuner-qwen2-flash-attention-forward",)
    assert not found(XTUNER).matches[0].confirmed


def test_the_combination_that_the_versions_confirm_is_shown():
    """The first combination is of a package that the log does not state, the second of one that it does."""
    known = replace(
        KNOWN["xtuner-qwen2-flash-attention-forward"],
        affected=(
            {"transformers": SpecifierSet(">=4.43"), "deepspeed": SpecifierSet(">=1")},
            {"transformers": SpecifierSet(">=4.43"), "xtuner": SpecifierSet("<0.2")},
        ),
    )
    (match,) = found("xtuner==0.1.23\ntransformers==4.44.2\n" + XTUNER, {known.id: known}).matches
    assert match.confirmed
    assert match.versions_seen == {"xtuner": "0.1.23", "transformers": "4.44.2"}


def test_of_two_confirmed_combinations_the_first_is_shown():
    known = replace(
        KNOWN["xtuner-qwen2-flash-attention-forward"],
        affected=({"transformers": SpecifierSet(">=4.43")}, {"xtuner": SpecifierSet("<0.2")}),
    )
    log = "xtuner==0.1.22\nxtuner==0.1.23\nxtuner==0.3\ntransformers==4.44.2\n"
    (match,) = found(log + XTUNER, {known.id: known}).matches
    assert match.versions_seen["xtuner"] == "0.3"  # the second would narrow it to 0.1.23


def test_an_incident_without_version_ranges_is_never_confirmed():
    known = next(item for item in KNOWN.values() if item.severity == "failure" and not item.affected)
    (match,) = found(log_of(known), {known.id: known}).matches
    assert not match.confirmed


def test_a_remedy_that_is_applied_already_is_not_offered():
    log = "ERROR: ld: cannot find -lcuda\n"
    assert {"triton"} in [set(remedy.fix.change) for remedy in found(log).matches[0].fix]
    assert {"triton"} not in [set(remedy.fix.change) for remedy in found("triton==3.1.0\n" + log).matches[0].fix]


LOGS = Path(__file__).parents[1] / "logs"
THREADS = [
    case
    for name in ("threads", "training_threads")
    for case in yaml.safe_load((LOGS / f"{name}.yaml").read_text(encoding="utf-8"))
]


def test_a_log_of_a_public_thread_gets_its_answer():
    breaches = []
    for case in THREADS:
        log = io.BytesIO(case["log"].encode())
        matches = diagnose_log(log, list(KNOWN.values()), GPUS, ATLAS_ALONE).matches
        first = ([match.incident.id for match in matches] or ["none"])[0]
        if first != case["first"]:
            breaches.append(f"{case['thread']} gets {first}, not {case['first']}")
    assert not breaches, "\n".join(breaches)


@pytest.mark.parametrize(
    ("name", "function", "said", "frame"),
    [
        (
            "xtuner-qwen2-rotary-seq-len",
            "Qwen2RotaryEmbedding.forward",
            "seq_len",
            'File "/lib/site-packages/xtuner/model/modules/dispatch/qwen2.py", line 74, in qwen2_attn_forward',
        ),
        ("sft-trainer-tokenizer-argument", "SFTTrainer.__init__", "tokenizer", "    trainer = SFTTrainer("),
    ],
)
def test_the_wording_of_python_before_3_10_needs_the_callers_file(name, function, said, frame):
    """It leaves the class out, so that the same words may be of anything."""
    newer = f"TypeError: {function}() got an unexpected keyword argument '{said}'\n"
    older = newer.replace(function, function.rpartition(".")[2])
    assert ids(newer) == [name]
    assert ids(f"  {frame}\n{older}") == [name]
    assert ids(older) == []
    assert ids(f"  {frame}\n" + older.replace(said, "other")) == []
    other = newer.replace(function, "Other" + function)
    assert ids(f"  File other.py, line 7\n{other}") == []


@pytest.mark.parametrize(
    "line",
    [
        "AttributeError: 'Qwen2FlashAttentoin2' object has no attribute '_flash_attention_forward'",
        "AttributeError: 'Qwen2FlashAttention2' object has no attribute '_flash_atention_forward'",
        "TypeError: _flash_attn_varlen_backward() missing 1 required positional argument: 'softcaps'",
        "ImportError: cannot import name 'LlamaFlashAttention3' from 'transformers.models.llama.modeling_llama'",
        "ModuleNotFoundError: No module named 'torch'",
        "ModuleNotFoundError: No module named 'flash_attn'",
        "everything is fine",
        "",
    ],
)
def test_an_unknown_failure_has_no_match(line):
    assert ids("transformers==4.44.2\n" + line) == []


def test_the_first_cause_comes_first():
    names = [name for name in sorted(KNOWN) if KNOWN[name].severity == "failure" and not KNOWN[name].affected][:10]
    random.Random(3).shuffle(names)  # noqa: S311 - a shuffle
    log = "".join(log_of(KNOWN[name]) + "step\n" * 20 for name in names)
    assert ids(log)[0] == names[0]
    assert set(names) <= set(ids(log))


def certainty(log):
    return str(found(log).matches[0].certainty)


def test_an_answer_is_only_likely_where_another_failure_stands_behind_it():
    assert certainty(SOFTCAP) == "sure"
    assert certainty(log_of(KNOWN["wheel-not-built"])) == "likely"


def test_an_answer_is_only_likely_where_no_line_is_an_error():
    wanting = "no kernel image is available for execution on the device"
    frame = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    run()\n'
    assert certainty(f"{frame}RuntimeError: CUDA error: {wanting}\n") == "sure"
    assert certainty(f"left out, a choice of the autotuner: {wanting}\nstep 1\n") == "likely"


def test_what_only_reports_say_is_likely_unless_the_versions_confirm_it():
    known = KNOWN["triton-shared-memory"]
    assert (known.confidence, certainty(log_of(known))) == ("reported", "likely")
    assert certainty(SOFTCAP) == "sure"


def test_what_the_last_error_alone_gives_is_only_likely(tmp_path, capsys):
    log = tmp_path / "train.log"
    log.write_text(
        'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n    raise ValueError(kind)\n'
        "ValueError: there is no schedule of this kind\n"
    )
    assert main(["diagnose", "--json", str(log)]) == 0
    assert json.loads(capsys.readouterr().out)["matches"][0]["certainty"] == "likely"
    assert main(["diagnose", str(log)]) == 0
    assert capsys.readouterr().out.startswith("1. likely: ")


def test_a_harmless_warning_comes_after_the_failure():
    log = log_of(KNOWN["qwen-rms-norm-not-imported"]) + "step\n" * 50 + SOFTCAP
    assert ids(log) == ["transformer-engine-softcap-backward", "qwen-rms-norm-not-imported"]


def test_a_silent_fault_is_reported_when_the_log_states_its_versions():
    log = "use_varlen_attn = True\nxtuner==0.1.23\ntransformers=={}\nloss: 1.0\n"
    assert ids(log.format("4.48.3")) == ["xtuner-dispatch-left-out"]
    assert ids(log.format("4.42.4")) == []


def test_the_gpu_excludes_and_confirms():
    error = "RuntimeError: FlashAttention only supports Ampere GPUs or newer.\n"
    assert ids("GPU type: Tesla V100-SXM2-32GB\n" + error) == ["flash-attn-2-needs-ampere"]
    assert ids("GPU type: NVIDIA H100 80GB HBM3\n" + error) == []


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ("transformers==4.44.2", "transformers", "4.44.2"),
        ("transformers == 4.44.2 xtuner == 0.1.23", "xtuner", "0.1.23"),
        ("Successfully installed torch-2.4.0 flash-attn-2.6.3\n", "flash-attn", "2.6.3"),
        ("/x/site-packages/flash_attn-2.5.8.dist-info/METADATA", "flash-attn", "2.5.8"),
        ("/x/site-packages/transformers-2.3.0-py3.8.egg/transformers/__init__.py", "transformers", "2.3.0"),
        ("/x/flash_attn-2.5.8-py3.10-linux-x86_64.egg/flash_attn_2_cuda.so", "flash-attn", "2.5.8"),
        (
            "flash_attn-2.5.5+cu118torch2.2cxx11abiTRUE-cp38-cp38-linux_x86_64.whl",
            "flash-attn",
            "2.5.5+cu118torch2.2cxx11abiTRUE",
        ),
        ("- `transformers` version: 4.54.1\n", "transformers", "4.54.1"),
        ("- PyTorch version (GPU?): 2.4.0+cu124 (False)\n", "torch", "2.4.0+cu124"),
        ("PyTorch version: 2.1.0+cu118\n", "cuda", "11.8"),
        ("torch                             2.3.0+cu121\n", "torch", "2.3.0+cu121"),
        ("Name: torch\nVersion: 2.1.2\n", "torch", "2.1.2"),
        ("Transformers Version: 4.44.2\n", "transformers", "4.44.2"),
        ("Python version: 3.10.14\n", "python", "3.10.14"),
        ('File "/opt/lib/python3.10/site-packages/x.py"', "python", "3.10"),
        ("x.cpython-311-x86_64-linux-gnu.so", "python", "3.11"),
        ("| NVIDIA-SMI 535.183.01   Driver Version: 535.183.01   CUDA Version: 12.2 |", "driver", "535.183.01"),
        ("CUDA used to build PyTorch: 12.1\n", "cuda", "12.1"),
        ("Cuda compilation tools, release 11.8, V11.8.89", "nvcc", "11.8"),
        ("Libc version: glibc-2.31\n", "glibc", "2.31"),
        ("- flash-attn: 2.5.7\n", "flash-attn", "2.5.7"),
        ("NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not", "gpu", "120"),
    ],
)
def test_versions_are_read(text, name, version):
    assert version in found("\n" + text).versions.get(name, [])


@pytest.mark.parametrize(
    "text",
    [
        "You are attempting to use Flash Attention 2.0 without specifying a torch dtype",
        "specifying the manual implementation will be required from Transformers version v5.0.0 onwards.",
        "The `seen_tokens` attribute is deprecated and will be removed in v4.41. Use the `cache_position` input",
        "This needs transformers 4.53 or newer",
        "vllm 0.6.3 requires torch==2.4.0",
        "requires torch 2.6.0",
        "at least transformers 4.40.0",
        "python 3 -m torch.distributed.run",
        "transformers>=4.41.2,<=4.46.1",
    ],
)
def test_a_version_that_is_only_mentioned_is_not_read(text):
    assert set(found(f"step\n{text}\n").versions) <= {"vllm"}


@pytest.mark.parametrize("after", [0, 30_000, 120_000])
def test_versions_late_in_a_long_log_are_read(after):
    step = "{'loss': 1.0, 'learning_rate': 1e-05, 'epoch': 0.12}\n"
    report = "- Transformers version: 4.42.4\n- xtuner version: 0.1.23\n" + XTUNER
    seen = found(step * 80_000 + report + step * after)
    assert seen.versions["transformers"] == ["4.42.4"]
    assert not seen.matches


def test_a_training_step_is_not_read_as_a_version():
    assert not found("{'loss': 0.5, 'step': 100}\ntorch.cuda.amp 1\nat torch/nn/modules/module.py:1553\n").versions


@pytest.mark.parametrize("seed", range(4))
def test_garbage_raises_no_error(seed):
    made = random.Random(seed)  # noqa: S311 - noise
    data = made.randbytes(3 << 19)  # more than one block
    assert found(data).matches == ()
    cut = (b"\xff\xfe\x00" + data + XTUNER.encode() + "训练报错".encode("gb18030") + data)[: -made.randrange(1000)]
    assert [match.incident.id for match in found(cut).matches] == ["xtuner-qwen2-flash-attention-forward"]


@pytest.mark.parametrize("shift", range(0, 120, 7))
def test_a_failure_across_two_blocks_is_found_with_its_line(shift):
    line = b"x" * 99 + b"\n"
    before = (line * (BLOCK // 100 + 2))[: BLOCK - shift]
    before = before[: before.rfind(b"\n") + 1]
    seen = found(before + XTUNER.encode() + line * 1000).matches
    assert [match.line for match in seen] == [before.count(b"\n") + 1]


@pytest.mark.timeout(60)
def test_near_misses_and_hostile_lines_take_little_time():
    hostile = b"'Qwen2FlashAttention2' " * 200_000 + b"undefined symbol: " * 200_000 + b"==" * 500_000
    start = time.process_time()
    assert found(hostile).matches == ()
    assert time.process_time() - start < 20


def test_signatures_are_checked():
    for text in (
        "a.*b and much more text",
        "(a+)+ and much more text",
        r"\d+ and much more text",
        "short",
        "{what} and more",
    ):
        with pytest.raises(SignatureError):
            compile_signature(text)
    with pytest.raises(SignatureError, match="one line"):
        compile_signature("one line of words\nanother line of words")
    made = compile_signature(r"call to \*args of * failed completely")
    assert made.search(normalize_log(b"Error: call to *args of some_function failed completely"))
    assert not made.search(normalize_log(b"Error: call to args of some_function failed completely"))
    assert not made.search(normalize_log(b"call to *args of some\nfunction failed completely"))
    assert not made.search(normalize_log(b"call to *args of " + b"x" * 300 + b" failed completely"))


def test_a_signature_is_found_after_an_incomplete_match():
    made = compile_signature("cannot import name * from widget.kernels")
    assert made.search(
        normalize_log(b"cannot import name f from elsewhere\ncannot import name g from widget.kernels\n")
    )
    assert made.search(
        normalize_log(b"cannot import name f; cannot import name " + b"g" * 190 + b" from widget.kernels")
    )
    assert not made.search(normalize_log(b"cannot import name f from elsewhere\ncannot import name g from gadget\n"))


def test_a_signature_after_many_near_misses_is_found_by_its_longest_part():
    """Its words occur more often than the scan visits them; its longest part occurs twice."""
    made = compile_signature("cannot import name * from widget.kernels")
    noise = b"".join(b"kernels %d\n" % number for number in range(3000))
    log = b"imported f from widget.kernels\n" + noise + b"cannot import name f from widget.kernels\n" + noise
    scan = SignatureScan(signatures=[made])
    scan.read(io.BytesIO(log))
    assert scan.lines_of == {0: 3002}


def test_the_limits_of_wildcards_placeholders_and_length():
    six, four = "quoted words of it" + " * more" * 6, "quoted words of it" + " {number} more" * 4
    assert compile_signature(six).segments
    assert compile_signature(four).segments
    for text in (six + " * more", four + " {number} more", "elevenchars"):
        with pytest.raises(SignatureError):
            compile_signature(text)
    assert compile_signature("twelve_chars").segments


def test_a_word_that_touches_a_wildcard_or_a_placeholder_is_not_searched_for():
    assert compile_signature("failed at widget{number}gadget, kernels*loaded now, {name}behind").words == (b"failed",)


def test_the_command_line(tmp_path, capsys, monkeypatch):
    log = tmp_path / "train.log"
    log.write_text("xtuner==0.1.23 transformers==4.44.2\n" + XTUNER)
    assert main(["diagnose", str(log), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    match = document["matches"][0]
    assert match["incident"] == "xtuner-qwen2-flash-attention-forward"
    assert match["component"] == "xtuner"
    assert match["versions_seen"] == {"xtuner": "0.1.23", "transformers": "4.44.2"}
    assert match["fix"][0]["change"] == {"transformers": ">=4.39,<4.43"}
    assert {"confidence", "because", "severity", "line"} <= set(match)
    assert main(["diagnose", str(log)]) == 0
    assert "xtuner-qwen2-flash-attention-forward" in capsys.readouterr().out
    log.write_text("all went well\n")
    assert main(["diagnose", str(log), "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["matches"] == []
    assert main(["diagnose", str(log)]) == 3
    assert "nothing known is in this log" in capsys.readouterr().out
    assert main(["diagnose", str(tmp_path / "none.log")]) == 2
    assert main(["diagnose", str(tmp_path)]) == 2
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(SOFTCAP.encode())))
    assert main(["diagnose", "-"]) == 0
    assert "transformer-engine-softcap-backward" in capsys.readouterr().out


def test_incidents_of_another_folder(tmp_path, capsys):
    log = tmp_path / "train.log"
    log.write_text("the widget exploded twice\n")
    folder = tmp_path / "mine"
    folder.mkdir()
    assert main(["diagnose", str(log), "--incidents", str(folder)]) == 2
    (folder / "widget.yaml").write_text(
        "title: Widget\nkind: config\ncomponent: widget\nsignatures: [the widget exploded]\nbecause: It does.\n"
        "fix: [{note: none}]\nsource: owner/name#1\nconfidence: measured\n"
    )
    assert main(["diagnose", str(log), "--incidents", str(folder)]) == 0
    (folder / "bad.yaml").write_text('signatures: ["(x+x+)+y in a long line"]\n')
    assert main(["diagnose", str(log), "--incidents", str(folder)]) == 2
    assert "bad.yaml:1:" in capsys.readouterr().err


def test_every_signature_has_a_word_besides_numbers():
    marks = [mark for incident in load_incidents() for mark in incident.marks]
    assert all(strip_digits(word) for mark in marks for word in mark.words)
    with pytest.raises(SignatureError, match="whole word"):
        compile_signature("1234567 12345678 123456789")


@pytest.mark.parametrize("end", [b"\n", b"\r"])
def test_a_failure_among_similar_lines_is_found(end):
    noise = end.join(b"%d%% loss 0.%d" % (number % 100, number) for number in range(200_000))
    log = (
        noise + b"\nAttributeError: 'Qwen2FlashAttention2' object has no attribute '_flash_attention_forward'\n" + noise
    )
    found = diagnose_log(
        io.BytesIO(b"xtuner==0.1.23\ntransformers==4.44.2\nxtuner/model/modules/dispatch/x.py\n" + log),
        load_incidents(),
    )
    assert [match.incident.id for match in found.matches] == ["xtuner-qwen2-flash-attention-forward"]
    assert found.matches[0].line == 4 + noise.count(b"\n") + 1


def test_versions_in_many_similar_lines_are_all_read():
    log = b"".join(b"rank %d: transformers 4.4%d.0\n" % (number, number % 3) for number in range(30))
    assert diagnose_log(io.BytesIO(log), []).versions["transformers"] == ["4.40.0", "4.41.0", "4.42.0"]


def test_fifty_similar_lines_of_running_text_are_read():
    log = b"".join(b"rank %d has transformers 4.40.0\n" % number for number in range(49))
    assert (
        diagnose_log(io.BytesIO(log + b"rank 7 has transformers 4.41.0\n"), []).versions["transformers"][-1] == "4.41.0"
    )


def test_versions_at_the_end_of_a_long_log_are_read():
    step = b"{'loss': 1.0, 'learning_rate': 1e-05, 'epoch': 0.12}\n"
    log = step * 40_000 + b"- transformers: 4.42.4\n" + step * 1000
    assert len(log) > BLOCK
    assert diagnose_log(io.BytesIO(log), []).versions["transformers"] == ["4.42.4"]


def test_twenty_versions_of_a_package_are_kept():
    log = b"".join(b"torch==2.%d.0\n" % number for number in range(30))
    assert diagnose_log(io.BytesIO(log), []).versions["torch"] == [f"2.{number}.0" for number in range(20)]


def test_only_the_build_of_torch_names_the_cuda_release():
    assert found("xformers==0.0.28+cu118\n").versions == {"xformers": ["0.0.28+cu118"]}
    assert found("torch==2.4.0+cu118\n").versions["cuda"] == ["11.8"]


def test_a_wrapped_line_is_found_after_an_earlier_occurrence_of_its_word():
    made = compile_signature("cannot import name something from widget.kernels")
    line = b"x" * 60 + b" cannot import name\n something from widget.kernels"
    scan = SignatureScan(signatures=[made])
    scan.read(io.BytesIO(b"something of the widget kernels\n" + b"step\n" * 1000 + line + b"\n"))
    assert scan.lines_of == {0: 1003}


def test_of_two_incidents_in_one_line_the_confirmed_one_comes_first():
    first = KNOWN["xtuner-qwen2-flash-attention-forward"]
    unsure = replace(first, id="a", affected=({"transformers": SpecifierSet(">=4.43"), "trl": SpecifierSet(">1")},))
    sure = replace(first, id="b", affected=({"transformers": SpecifierSet(">=4.43")},))
    matches = found("transformers==4.44.2\nxtuner==0.1.23\n" + XTUNER, {"a": unsure, "b": sure}).matches
    assert [(match.incident.id, match.confirmed) for match in matches] == [("b", True), ("a", False)]


def test_a_remedy_that_any_release_meets_is_still_offered():
    first = KNOWN["xtuner-qwen2-flash-attention-forward"]
    again = replace(first, fix=(Fix(note="install it again", change={"xtuner": "*"}),))
    (match,) = found("xtuner==0.1.23\ntransformers==4.44.2\n" + XTUNER, {again.id: again}).matches
    assert [remedy.fix.note for remedy in match.fix] == ["install it again"]


def test_a_full_stop_is_not_part_of_a_version():
    assert found("Installed torch==2.3.0+cu121.\n").versions == {"torch": ["2.3.0+cu121"], "cuda": ["12.1"]}


@pytest.mark.parametrize(
    ("line", "name", "component"),
    [
        (
            (
                "ImportError: /lib/python3.10/site-packages/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so: "
                "undefined symbol: _ZN3c104cuda9SetDeviceEi"
            ),
            "extension-other-torch",
            "flash-attn",
        ),
        (
            "ImportError: /lib/site-packages/torchvision/_C.so: undefined symbol: _ZNK2at6Tensor5dtypeEv",
            "extension-other-torch",
            "torchvision",
        ),
        (
            "ImportError: /x/selective_scan_cuda.cpython-311-x86_64-linux-gnu.so: undefined symbol: _ZN5torch3jit1xE",
            "extension-other-torch",
            "mamba-ssm",
        ),
        ("OSError: /lib64/libc.so.6: version `GLIBC_2.34' not found", "binary-needs-newer-glibc", "glibc"),
        (
            "ImportError: /lib64/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by /x/_C.so)",
            "binary-needs-newer-libstdcxx",
            "libstdc++",
        ),
        (
            "ImportError: /lib64/libstdc++.so.6: version `CXXABI_1.3.15' not found",
            "binary-needs-newer-libstdcxx",
            "libstdc++",
        ),
        (
            "Tesla P100-PCIE-16GB with CUDA capability sm_60 is not compatible with the current PyTorch installation.",
            "torch-without-gpu-code",
            "torch",
        ),
        (
            "NVIDIA GB300 with CUDA capability sm_103 is not compatible with the current PyTorch installation.",
            "torch-without-gpu-code",
            "torch",
        ),
        ("RuntimeError: no kernel image is available for execution on the device", "cuda-no-kernel-image", "torch"),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_121'", "compiler-unknown-gpu", "cuda"),
        ("/bin/sh: 1: /usr/local/cuda/bin/nvcc: not found\nnvcc: command not found", "cuda-home-not-set", "cuda"),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: '/usr/local/cuda/bin/nvcc'",
            "cuda-home-not-set",
            "cuda",
        ),
        (
            (
                "Exception: >- DeepSpeed Op Builder: Installed CUDA version 11.5 does not match the version torch "
                "was compiled with 12.1"
            ),
            "cuda-toolkit-other-than-torch",
            "torch",
        ),
        (
            (
                '  File "/lib/site-packages/bitsandbytes/cextension.py", line 3\n'
                "OSError: libcublas.so.11: cannot open shared object file: No such file or directory"
            ),
            "nvidia-library-missing",
            "bitsandbytes",
        ),
        (
            "ImportError: libnccl.so.2: cannot open shared object file",
            "nvidia-library-own-number",
            "a compiled extension",
        ),
        (
            "ImportError: libnvrtc.so.12: cannot open shared object file",
            "nvidia-library-missing",
            "a compiled extension",
        ),
        ("libtorch_cuda.so: undefined symbol: ncclCommRegister", "nvidia-library-other", "torch"),
        ("RuntimeError: No available kernel.  Aborting execution.", "sdpa-no-kernel", "torch"),
        (
            "torch._inductor.exc.InductorError: NoValidChoicesError: No choices to select, please consider adding ATEN",
            "flex-attention-no-choices",
            "torch",
        ),
        ("RuntimeError: FlashAttention only supports Hopper GPUs or newer.", "flash-attn-newer-gpu-only", "flash-attn"),
        ("RuntimeError: FlashAttention only supports Turing GPUs or newer.", "flash-attn-newer-gpu-only", "flash-attn"),
        ("RuntimeError: Error building extension 'cpu_adam'", "deepspeed-jit-build", "deepspeed"),
        (
            'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
            "docker-without-gpu-runtime",
            "container",
        ),
        ("RuntimeError: operator torchvision::nms does not exist", "torchvision-other-torch", "torchvision"),
        ("RuntimeError: operator torchaudio::ffmpeg does not exist", "torchvision-other-torch", "torchaudio"),
        ("CUDA Setup failed despite GPU being available. Please run", "bitsandbytes-cuda-setup", "bitsandbytes"),
        (
            "AttributeError: /x/libbitsandbytes_cpu.so: undefined symbol: cget_col_row_stats",
            "bitsandbytes-cuda-setup",
            "bitsandbytes",
        ),
        (
            "ValueError: Target modules {'c_attn'} not found in the base model. Please",
            "peft-target-modules",
            "your-code",
        ),
        (
            "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge",
            "safetensors-header",
            "model",
        ),
        ("RuntimeError: Dataset scripts are no longer supported, but found wiki.py", "datasets-scripts", "datasets"),
        ("RuntimeError: expected scalar type Half but found Float", "mixed-dtypes", "your-code"),
        ("ncclUnhandledCudaError: Call to CUDA function failed.", "nccl-error", "nccl"),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
            "cuda-out-of-memory",
            "gpu-memory",
        ),
        (
            "sh: 1: nvcc: not found",
            "cuda-home-not-set",
            "cuda",
        ),
        (
            "unable to execute nvcc: No such file or directory\nerror: command 'nvcc' failed with exit status 1",
            "cuda-home-not-set",
            "cuda",
        ),
        (
            "/x/libc.so.6: version GLIBC_2.34 not found (required by ./a)",
            "binary-needs-newer-glibc",
            "glibc",
        ),
        (
            "/x/libstdc++.so.6: version GLIBCXX_3.4.29 not found",
            "binary-needs-newer-libstdcxx",
            "libstdc++",
        ),
        (
            "RuntimeError: cuda runtime error (59) : device-side assert triggered at /x.cu:24",
            "device-side-assert-unnamed",
            "your-code",
        ),
        (
            "RuntimeError: cuda runtime error (2) : out of memory at /x.cu:66",
            "cuda-out-of-memory",
            "gpu-memory",
        ),
        (
            "RuntimeError: cuda runtime error (30) : unknown error at /x.cpp:55",
            "gpu-not-usable",
            "driver",
        ),
        (
            "RuntimeError: cuda runtime error (77) : an illegal memory access was encountered at /x.cu",
            "cuda-illegal-access",
            "torch",
        ),
        (
            "RuntimeError: cuda runtime error (10) : invalid device ordinal at /x.cpp:37",
            "cuda-device-ordinal",
            "your-code",
        ),
        (
            "RuntimeError: cuda runtime error (8) : invalid device function at /x.cu:60",
            "cuda-no-kernel-image",
            "torch",
        ),
        (
            "RuntimeError: CUDA error: CUDA driver version is insufficient for CUDA runtime version",
            "nvidia-driver-too-old",
            "driver",
        ),
        (
            "RuntimeError: cuda runtime error (35) : CUDA driver version is insufficient for CUDA runtime version",
            "nvidia-driver-too-old",
            "driver",
        ),
        (
            "RuntimeError: Expect q/k/v and block_mask to be on the same device but got cpu and cuda:0.",
            "tensors-on-two-devices",
            "your-code",
        ),
        (
            "ImportError: /x/site-packages/torch/_C.so: undefined symbol: _ZN4thpp10THCSTensorIlEC1E",
            "torch-libraries-mixed",
            "torch",
        ),
        (
            "ImportError: /x/torch/lib/libtorch_python.so: undefined symbol: _ZN2at5emptyEv",
            "torch-libraries-mixed",
            "torch",
        ),
    ],
)
def test_a_signature_covers_all_wordings_of_one_cause(line, name, component):
    (match, *_) = found("Traceback (most recent call last):\n" + line + "\n").matches
    assert (match.incident.id, match.incident.component) == (name, component)


def test_escapes_of_html_are_read():
    escaped = XTUNER.replace("'", "&#39;").replace(" object", "&nbsp;object")
    assert ids(escaped) == ids(XTUNER)


@pytest.mark.parametrize("width", [72, 80, 100])
def test_a_line_that_was_wrapped_between_words_is_read(width):
    line = (
        "[rank1]: "
        + "x " * 12
        + "AttributeError: 'Qwen2FlashAttention2' object has no attribute '_flash_attention_forward'"
    )
    assert ids("\n".join(textwrap.wrap(line, width))) == ["xtuner-qwen2-flash-attention-forward"]
