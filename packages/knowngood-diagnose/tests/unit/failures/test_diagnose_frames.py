"""Lines of tracebacks compared with published files: what they narrow and what they contradict."""

from __future__ import annotations

import ast
import io
import json
import re

import pytest

from knowngood.cli.main import main
from knowngood.core.local_files import data_folder
from knowngood_diagnose.cli.diagnose import _function_lines
from knowngood_diagnose.failures.diagnosis import LogKnowledge, diagnose_log
from knowngood_diagnose.failures.logs.log_scan import LogBlock
from knowngood_diagnose.failures.logs.log_versions import PACKAGES, FrameReader, TracebackFrame, judge_frames
from knowngood_facts.compat.query import parse_requirement
from knowngood_facts.compat.rule_files import load_incidents
from knowngood_facts.facts.function_lines import TRACEBACK_FILES, find_function_ranges

FILE = "thing/core.py"
TABLE = {
    "1.0": {FILE: {"run": [[10, 20]], "stop": [[30, 40]]}},
    "1.1": {FILE: {"run": [[15, 25]], "stop": [[35, 45]]}},
    "2.0": {FILE: {"run": [[50, 60]], "stop": [[35, 45]]}},
}
XTUNER = "AttributeError: 'Qwen2FlashAttention2' object has no attribute '_flash_attention_forward'\n"


def at(line, function="run"):
    return TracebackFrame("thing", FILE, line, function)


def told(*frames, claimed=()):
    return judge_frames(frames, lambda _: TABLE, {"thing": list(claimed)}).get("thing")


def test_a_line_narrows_to_the_releases_with_that_function_there():
    assert told(at(12)).releases == ("1.0",)
    assert told(at(18)).releases == ("1.0", "1.1")
    assert told(at(18), at(42, "stop")).releases == ("1.1",)
    assert told(at(12)).exact
    assert told(at(18)).span == "1.0 to 1.1"
    assert told(at(999)).span == "no release"
    gap = {**TABLE, "1.2": {FILE: {"run": [[10, 20]]}}}
    assert judge_frames([at(12)], lambda _: gap, {})["thing"].span == "1.0, 1.2"


def test_a_line_contradicts_the_version_that_the_log_claims():
    against = told(at(55), claimed=["1.1"])
    assert (against.claimed, against.releases) == ("1.1", ("2.0",))
    assert against.frame == f"{FILE}, line 55, in run"
    assert told(at(55), claimed=["1.1", "2.0"]).claimed == "", "one of two installations fits"
    assert told(at(55), claimed=["2.0+cu121"]).claimed == ""
    assert told(at(55), claimed=["9.9"]).claimed == "", "a release that is not in the table is not judged"


def test_lines_of_no_release_mean_changed_files():
    assert told(at(999)).releases == ()
    assert told(at(12), at(55)).releases == ()
    assert told(at(999), claimed=["1.0"]).claimed == "1.0"


def test_a_function_without_lines_in_the_table_is_ignored():
    assert told(at(12, "other")) is None
    assert judge_frames([at(12)], lambda _: {}, {}) == {}


@pytest.mark.parametrize(
    "line",
    [
        '  File "/opt/lib/python3.10/site-packages/transformers/trainer.py", line 2052, in train',
        '[rank3]:   File "/usr/lib/python3/dist-packages/transformers/trainer.py", line 2052, in train',
        r'  File "C:\Benutzer\Jörg\venv\Lib\site-packages\transformers\trainer.py", line 2052, in train',
        '  File "/home/用户/环境/lib/python3.11/site-packages/transformers/trainer.py", line 2052, in train',
        r'{"message": "  File \"/x/site-packages/transformers/trainer.py\", line 2052, in train\n"}',
        "File /opt/conda/lib/python3.10/site-packages/transformers/trainer.py:2052, in Trainer.train(self, resume)",
        "(TrainerActor pid=7)   File '/x/site-packages/transformers/trainer.py', line 2052, in train",
    ],
)
def test_frames_are_read_in_every_form(line):
    frames = FrameReader()
    frames.feed(LogBlock(raw=line.encode()), frames.hints)
    assert list(frames.frames) == [TracebackFrame("transformers", "transformers/trainer.py", 2052, "train")]


@pytest.mark.parametrize(
    "line",
    [
        '  File "/home/me/src/transformers/trainer.py", line 2052, in train',
        '  File "/opt/lib/python3.10/site-packages/deepspeed/runtime/engine.py", line 1, in step',
        '  File "/opt/lib/python3.10/site-packages/transformers/trainer.py", line , in train',
    ],
)
def test_other_files_are_not_read_as_frames(line):
    frames = FrameReader()
    frames.feed(LogBlock(raw=line.encode()), frames.hints)
    assert not frames.frames


def test_ranges_come_from_the_syntax_tree():
    text = (
        "class A:\n    def forward(self):\n        return 1\n\nclass B:\n    async def forward(self):\n        pass\n"
    )
    text += "def outer():\n    def inner():\n        pass\n"
    assert find_function_ranges(ast.parse(text)) == {
        "forward": [[2, 3], [6, 7]],
        "inner": [[9, 10]],
        "outer": [[8, 10]],
    }
    assert list(find_function_ranges(ast.parse(text), ("outer",))) == ["outer"]


@pytest.mark.parametrize("package", sorted(TRACEBACK_FILES))
def test_the_harvested_tables_hold_every_file(package):
    table = _function_lines(package)
    assert len(table) > 5
    assert {name for files in table.values() for name in files} == set(TRACEBACK_FILES[package])


def observed():
    """Frames that real runs ended in, with the releases that were installed."""
    for path in sorted((data_folder() / "evidence" / "incidents").glob("*/*.json")):
        for side in json.loads(path.read_text(encoding="utf-8"))["sides"]:
            for said in (side.get("exception") or {}).get("where", []):
                found = re.fullmatch(r"(?:.*-packages/)?((\w+)/[\w/]+\.py):(\d+) (\w+)", said)
                if found and found[2].encode() in PACKAGES:
                    yield TracebackFrame(PACKAGES[found[2].encode()], found[1], int(found[3]), found[4]), side


def test_the_frames_of_real_runs_fit_the_releases_that_ran():
    judged = 0
    for frame, side in observed():
        asked = [*side["requirements"], *side["sources"]]
        pins = [parse_requirement(text, python=side["python"]) for text in asked]
        ran = {wanted.name: wanted.version for wanted in pins if wanted is not None}
        found = judge_frames(
            [frame], _function_lines, {frame.package: [ran[frame.package]]} if frame.package in ran else {}
        )
        if frame.package in found and frame.package in ran:
            judged += 1
            assert not found[frame.package].claimed, (frame, side["side"])
    assert judged >= 3


def log_of(claimed, line):
    frame = f'  File "/x/site-packages/transformers/models/qwen2/modeling_qwen2.py", line {line}, in __init__\n'
    caller = '  File "/x/site-packages/xtuner/model/modules/dispatch/qwen2.py", line 160, in qwen2_attn_forward\n'
    return f"xtuner==0.1.23\ntransformers=={claimed}\n{frame}{caller}{XTUNER}"


def place(version, function):
    return _function_lines("transformers")[version]["transformers/models/qwen2/modeling_qwen2.py"][function][0][0] + 1


def test_a_contradicted_version_does_not_exclude_an_incident(tmp_path, capsys):
    line = place("4.44.2", "_update_causal_mask")
    log = log_of("4.36.0", line).replace("4.36.0", "4.37.2").replace("__init__", "_update_causal_mask")
    found = diagnose_log(io.BytesIO(log.encode()), load_incidents(), None, LogKnowledge(load_lines=_function_lines))
    assert found.traceback["transformers"].claimed == "4.37.2"
    assert "4.44.2" in found.traceback["transformers"].releases
    assert [match.incident.id for match in found.matches] == ["xtuner-qwen2-flash-attention-forward"]
    assert not found.matches[0].confirmed or "transformers" not in found.matches[0].versions_seen
    path = tmp_path / "log"
    path.write_text(log)
    assert main(["diagnose", str(path)]) == 0
    assert "transformers: the log states 4.37.2, but" in capsys.readouterr().out
    assert main(["diagnose", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["traceback"]["transformers"]["contradicts"] == "4.37.2"


def test_lines_exclude_an_incident_when_the_log_states_no_version():
    line = place("5.17.0", "eager_attention_forward")
    log = log_of("", line).replace("transformers==\n", "").replace("__init__", "eager_attention_forward")
    found = diagnose_log(io.BytesIO(log.encode()), load_incidents(), None, LogKnowledge(load_lines=_function_lines))
    assert "4.44.2" not in found.traceback["transformers"].releases
    assert found.excluded == ("xtuner-qwen2-flash-attention-forward",)
