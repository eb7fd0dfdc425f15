from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from knowngood.core import matrix
from knowngood.core.cell import parse_cell
from knowngood.core.errors import KnowngoodError, UsageError
from knowngood.core.hosts import HostArchitecture
from knowngood.images import dockerfile
from knowngood.lock.cell_lock import split_into_layers
from knowngood.lock.lock_tree import CellLock
from samples import FA0, FA2, FA4, KNOWLEDGE, ROOT, distributions, parsed, with_

TEMPLATES = ROOT / "templates"


def locked(identity: str = FA4, base: str = "debian12") -> CellLock:
    layers = split_into_layers(
        distributions(identity), {"torch": ["torch"], "flash-attn": ["flash-attn*"], "python": ["*"]}
    )
    return CellLock(cell=parse_cell(identity), base=base, inputs="0" * 64, layers=layers)


def instructions(text: str) -> list[str]:
    """The instruction words of a Dockerfile, as its parser finds them: comments out, continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\[ \t]*\n", "", "\n".join(lines))
    return [line.split()[0] for line in joined.splitlines() if line.strip()]


def expected(layers: int) -> list[str]:
    return [
        *["FROM", "RUN"] * (layers + 1),
        "FROM",
        *["COPY", "WORKDIR"],
        *["COPY"] * layers,
        *["FROM", "RUN"],
        "FROM",
        *["COPY", "ENV", "LABEL", "VOLUME", "USER", "CMD"],
    ]


@pytest.mark.parametrize("identity", [FA4, FA2, FA0])
def test_the_dockerfile_has_exactly_its_instructions(identity):
    made = locked(identity)
    text = dockerfile.render_dockerfile(made, TEMPLATES)
    assert instructions(text) == expected(len(made.layers))
    assert text.startswith("# Rendered by `knowngood render`")
    assert text.endswith('CMD ["python"]\n')
    assert f'io.knowngood.cell="{identity}"' in text
    assert 'NVIDIA_REQUIRE_CUDA="cuda>=13.0"' in text


def test_a_layer_made_of_source_archives_does_not_follow_the_order_of_sets():
    made = locked()
    whole, last = made.layers[:-1], made.layers[-1]
    archive = dataclasses.replace(last.distributions[0], file="deepspeed-0.16.2.tar.gz")
    sources = dataclasses.replace(last, distributions=(archive, *last.distributions[1:]))
    text = dockerfile.render_dockerfile(dataclasses.replace(made, layers=(*whole, sources)), TEMPLATES)
    assert text.count("\nENV PYTHONHASHSEED=0\nRUN ") == 1
    assert text.index("PYTHONHASHSEED") > text.index(f"AS layer-{last.group}")
    assert "PYTHONHASHSEED" not in dockerfile.render_dockerfile(made, TEMPLATES)


def test_rendering_twice_gives_the_same_text():
    assert dockerfile.render_dockerfile(locked(), TEMPLATES) == dockerfile.render_dockerfile(locked(), TEMPLATES)


@pytest.mark.parametrize("identity", [FA4, FA2, FA0])
def test_only_a_layer_with_flash_attn_2_sees_the_wheelhouse(identity):
    assert ("from=wheelhouse" in dockerfile.render_dockerfile(locked(identity), TEMPLATES)) is (identity == FA2)


def test_a_layer_of_any_name_with_flash_attn_mounts_the_wheelhouse():
    layers = split_into_layers(distributions(FA2), {"attention": ["flash-attn"], "python": ["*"]})
    text = dockerfile.render_dockerfile(dataclasses.replace(locked(FA2), layers=layers), TEMPLATES)
    stage = text.partition("AS layer-attention\n")[2].partition("FROM")[0]
    assert "from=wheelhouse" in stage


def test_a_layer_with_one_wheel_made_here_mounts_the_wheelhouse_and_its_title_counts_the_others():
    layers = split_into_layers(distributions(FA2), {"attention": ["flash-attn", "numpy"], "python": ["*"]})
    text = dockerfile.render_dockerfile(dataclasses.replace(locked(FA2), layers=layers), TEMPLATES)
    stage = text.partition("AS layer-attention\n")[2].partition("FROM")[0]
    assert "from=wheelhouse" in stage
    assert "flash-attn 2.8.3.post2+cu13torch2.11cxx11abitrue.sm90 and 1 more, 0.0 MB of wheels" in text


def test_every_axis_is_a_label():
    found = dockerfile.image_labels(locked())
    assert {key: value for key, value in found.items() if key.startswith("io.knowngood.")} == {
        "io.knowngood.cell": FA4,
        "io.knowngood.gpu": "sm_90",
        "io.knowngood.cuda": "13.0",
        "io.knowngood.torch": "2.11.0",
        "io.knowngood.transformers": "5.17.0",
        "io.knowngood.flash-attn": "4.0.0b36",
        "io.knowngood.triton": "3.6.0",
        "io.knowngood.python": "3.11",
        "io.knowngood.base": "debian12",
        "io.knowngood.lock": f"sha256:{locked().digest}",
    }


@pytest.mark.parametrize(("cuda", "floor"), [("13.0", "13.0"), ("12.8", "12.0"), ("11.8", "11.0")])
def test_the_cuda_floor_is_the_first_release_of_the_major(cuda, floor):
    assert dockerfile.cuda_floor(cuda) == floor


@pytest.mark.parametrize(
    "base", ['x"', "x\nRUN evil", "x\\", "$HOME", "x`y`", "#x", "x\u2028RUN", "é", "x\ty", "${X:-y}"]
)
def test_a_value_that_could_end_its_quotes_is_refused(base):
    with pytest.raises(UsageError, match="cannot be written into a Dockerfile"):
        dockerfile.render_dockerfile(locked(base=base), TEMPLATES)


hostile = st.one_of(
    st.text(st.characters(exclude_categories=("Cs",)), max_size=15),
    st.sampled_from(
        [
            'x"\nRUN evil',
            "x\nRUN evil",
            "x \\\nRUN evil",
            "$(evil)",
            "${PATH}",
            "# syntax=evil",
            "'; evil",
            "x,from=evil",
            "../../etc",
            "{{ evil }}",
            "{% raw %}",
            "x\rRUN evil",
            "x\u2028RUN evil",
            "\uff11.\uff12",
        ]
    ),
)
PLACES = [
    "schema: 1",
    "2026-11-20",
    "sm_90: ",
    "Hopper",
    "H100",
    "debian12:",
    "python: 3.11",
    "glibc: 2.36",
    "bookworm",
    "python3",
    "pytest",
    "torch: torch",
    "flash-attn: [",
    '"*"',
    "flash-attn=4.*,cuda>=13",
    "flash-attn-4[cu13]",
    "nvidia-cutlass-dsl-libs-cu12",
    "one CUDA in an image",
    "gpu: sm_90",
    "torch: 2.11.0",
    "transformers: 5.17.0",
    "flash-attn: 4.0.0b36",
    "base: debian12",
    "default",
]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(PLACES), hostile)
def test_nothing_in_matrix_yaml_becomes_an_instruction(place, text):
    """Every value and key, with any text in its place: refused with its line, or the Dockerfile that was expected."""
    quoted = '"' + "".join(f"\\U{ord(character):08x}" for character in text) + '"'
    key, _, value = place.partition(": ")
    new = f"{quoted}: {value}" if place.endswith(":") else f"{key}: {quoted}" if value else quoted
    anything = matrix.MatrixFacts(torch=KNOWLEDGE.torch, releases=lambda _package: None)
    source = with_((place, new)) if not place.endswith("[") else with_((place, f"{quoted}: ["))
    try:
        found = matrix.parse_matrix(source, "matrix.yaml", anything)
        for entry in found.entries.values():
            layers = split_into_layers(
                [item for item in distributions(FA0) if item.name != "transformers"], dict(found.layers)
            )
            made = CellLock(cell=entry.cell, base=entry.base, inputs="0" * 64, layers=layers)
            assert instructions(dockerfile.render_dockerfile(made, TEMPLATES)) == expected(len(layers))
    except KnowngoodError as error:
        assert error.exit_code == 2  # noqa: PT017
        assert re.match(r"matrix\.yaml:\d+:\d+: ", str(error))  # noqa: PT017


def test_stale_shows_what_would_change(tmp_path):
    path = tmp_path / "Dockerfile"
    assert "+FROM b" in dockerfile.describe_stale_files({path: "FROM b\n"}, [])
    path.write_text("FROM a\n")
    diff = dockerfile.describe_stale_files({path: "FROM b\n"}, [tmp_path / "old"])
    assert "-FROM a\n+FROM b\n" in diff
    assert diff.endswith(f"{tmp_path}/old: no cell of matrix.yaml has it\n")
    path.write_text("FROM b\n")
    assert dockerfile.describe_stale_files({path: "FROM b\n"}, []) == ""


@pytest.mark.parametrize("data", [b"FROM b\r\n", b"\xff\xfe", b""])
def test_a_file_of_other_bytes_is_stale(tmp_path, data):
    path = tmp_path / "Dockerfile"
    path.write_bytes(data)
    assert dockerfile.describe_stale_files({path: "FROM b\n"}, [])


def test_the_sample_renders_as_the_matrix_expands():
    assert [str(cell) for cell in parsed().cells] == [FA4, FA2, FA0]


def test_an_image_for_another_processor_is_made_without_running_any_of_its_programs():
    plain = locked()
    made = dataclasses.replace(plain, cell=plain.cell.on_host(HostArchitecture.AARCH64), base="debian12-aarch64")
    compiled = dataclasses.replace(made.layers[0].distributions[0], file="torch-2.11.0-cp311-cp311-linux_aarch64.whl")
    layers = (dataclasses.replace(made.layers[0], distributions=(compiled,)), *made.layers[1:])
    text = dockerfile.render_dockerfile(dataclasses.replace(made, layers=layers), TEMPLATES)
    parts = re.split(r"^(FROM .*)\n", text, flags=re.MULTILINE)[1:]
    bodies = {head.split()[-1]: (head, body) for head, body in zip(parts[::2], parts[1::2], strict=True)}
    running = [name for name, (_, body) in bodies.items() if re.search(r"^RUN ", body, re.MULTILINE)]
    assert running == ["venv", "layer-torch", "layer-flash-attn", "layer-python", "checked"]
    assert bodies["venv"][0] == "FROM --platform=$BUILDPLATFORM builder AS venv"
    assert all(bodies[name][0].startswith("FROM venv AS") for name in running[1:-1])
    assert bodies["gathered"][0] == "FROM --platform=$BUILDPLATFORM builder AS gathered"
    assert "FROM base AS assembled" in text
    assert "FROM gathered AS checked" in text
    assert "from=foreign-tools,target=/tools" in bodies["layer-torch"][1]
    assert "from=foreign-tools" not in bodies["layer-python"][1]  # the same step as on x86-64, so the same bytes
    assert '"$@" --python-platform aarch64-manylinux' in text
    assert 'io.knowngood.host="aarch64"' in text
