"""The browser's diagnosis is that of `knowngood diagnose`: the same logs, first match and exclusions."""

import io
import json
import random
import re
import shutil
import subprocess

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from knowngood.core import local_files
from knowngood_diagnose.failures.diagnosis import diagnose_log
from knowngood_facts.compat.rule_files import load_incidents
from knowngood_pages import site_build, site_incidents

KNOWN = load_incidents()
STATIC = local_files.data_folder() / "templates" / "site" / "static"
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="there is no JavaScript here")

VERSIONS = [
    "",
    "transformers==4.44.2\ntorch==2.4.0+cu121\nflash-attn==2.6.3\n",
    "Successfully installed transformers-5.17.0 torch-2.11.0 xtuner-0.2.0 numpy-2.1.0\n",
    "- `transformers` version: 4.37.0\n- Python version: 3.12.3\n- PyTorch version (GPU?): 2.1.0+cu118 (True)\n",
    "Driver Version: 470.57.02\nNVIDIA X with CUDA capability sm_70 is not compatible\n",
    "/opt/python3.9/site-packages/deepspeed-0.15.1.dist-info\nvllm (0.6.1.post1) requires transformers>=4.44.2\n",
]


def sample(text):
    filled = text.replace("{version}", "2.8.3").replace("{number}", "11040").replace("{name}", "Some")
    return re.sub(r"(?<!\\)\*", "XyZ", filled).replace("\\*", "*")


def corpus():
    """Each signature with and without its context, in several environments, wrapped and with prefixes."""
    chance = random.Random(7)  # noqa: S311 - the same corpus every time
    for incident in KNOWN:
        for signature in incident.signatures:
            context = " ".join(sample(item.text) for item in (*incident.context[:1], *signature.beside[:1]))
            line = sample(signature.text)
            head = chance.choice(VERSIONS)
            yield f"{head}Traceback (most recent call last):\n  {context}\n{line}\n"
            yield f"(Worker pid=11) {context}\n[rank3]: {line}\n{chance.choice(VERSIONS)}"
            width = chance.randint(60, 90)
            yield "\n".join([context, *(line[at : at + width] for at in range(0, len(line), width)), head])
    yield "ImportError: /lib/libc.so.6: version &#x60;GLIBC_2.32&#39; not found (required by flash_attn_2_cuda.so)\n"
    yield "nothing is wrong\n" * 50
    yield "]]></script><script>alert(1)</script>\x00\x1b[31m\u2019 RuntimeError: \n"


def in_node(program):
    made = subprocess.run(["node", "-"], input=program, capture_output=True, text=True, check=True, timeout=100)
    return json.loads(made.stdout)


def program(expression, value):
    parts = [
        "const window = globalThis;",
        site_build.render_page_script("signatures", site_incidents.browser_signatures(KNOWN)),
    ]
    parts += [site_build.render_page_script("value", value), (STATIC / "diagnose.js").read_text()]
    return "\n".join([*parts, f"console.log(JSON.stringify({expression}));"])


@needs_node
def test_the_same_logs_have_the_same_answers():
    logs = list(corpus())
    ask = (
        "knowngood.value.map((log) => { const found = knowngoodDiagnose.diagnose(knowngood.signatures, log);"
        " const ids = found.matches.map((it) => [it.incident.id, it.line, it.confirmed]);"
        " return [ids, found.excluded.sort(), found.versions]; })"
    )
    answers = in_node(program(ask, logs))
    excluded = 0
    for log, (matches, left_out, versions) in zip(logs, answers, strict=True):
        found = diagnose_log(io.BytesIO(log.encode()), KNOWN)
        # Losses that stay nan are read by a reader of their own, which the page has not.
        computed = [
            [it.incident.id, it.line, it.confirmed] for it in found.matches if "nan-losses" in it.incident.traits
        ]
        expected = [[it.incident.id, it.line, it.confirmed] for it in found.matches]
        assert matches in (expected, [it for it in expected if it not in computed]), log
        assert left_out == sorted(found.excluded), log
        assert versions == {name: list(texts) for name, texts in found.versions.items()}, log
        excluded += len(left_out)
    assert excluded > 5  # versions do exclude some of them


@needs_node
def test_ranges_hold_the_same_versions():
    versions = "2.0 2.0.0 2.0.1 2.1.0rc1 2.1.0 2.1.0+cu121 2.1.0.post1 2.1.1.dev0 2.10.0 4.0.0b36 3.12.3"
    ranges = ">=2.1 >2.1 <2.1 <=2.1.0 ==2.1.* !=2.1.* ==2.1.0 !=2.1.0 ~=2.0 ~=2.0.0 <2.1.0rc2 >=4.0.0b3"
    pairs = [(text, version) for text in ranges.split() for version in versions.split()]
    told = in_node(program("knowngood.value.map(([text, it]) => knowngoodDiagnose.inside([text], [it]))", pairs))
    wanted = [SpecifierSet(text, prereleases=True).contains(Version(version)) for text, version in pairs]
    assert dict(zip(pairs, told, strict=True)) == dict(zip(pairs, wanted, strict=True))


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        (rb"a\sb[\s:]", r"a[ \t\n\r\f\v]b[ \t\n\r\f\v:]"),
        (rb"(?i:ab)c", "(?:[aA][bB])c"),
        (rb"(?i:[A-F]\w)", r"(?:[A-Fa-f]\w)"),
        (rb"x$", r"x(?=\n?$)"),
        (rb"\xe2[\x80-\xbf]", r"\xe2[\x80-\xbf]"),
    ],
)
def test_patterns_are_translated(pattern, wanted):
    assert site_incidents.javascript_pattern(pattern) == wanted
