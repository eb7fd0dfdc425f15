import pytest
from packaging.version import Version

from knowngood.index import wheel_tags
from knowngood.index.artefact import PublishedFile


def files(*names):
    return [PublishedFile(name=name, url="", sha256="", version=Version("1"), yanked=False) for name in names]


def test_pythons_of_wheel_tags():
    listed = files(
        "t-1-cp310-cp310-manylinux1_x86_64.whl",
        "t-1-cp37-cp37m-manylinux1_x86_64.whl",
        "t-1-cp313-cp313t-manylinux_2_28_x86_64.whl",
        "t-1-cp312-cp312-win_amd64.whl",
        "t-1-cp311-cp311-manylinux_2_28_aarch64.whl",
        "t-1.tar.gz",
    )
    assert wheel_tags.supported_pythons(listed) == ["3.7", "3.10"]
    assert wheel_tags.free_threaded_pythons(listed) == ["3.13t"]


def test_stable_abi_supports_up_to_the_end_of_requires_python():
    listed = files("t-1-cp312-abi3-manylinux_2_28_x86_64.whl")
    assert wheel_tags.supported_pythons(listed, ">=3.11,<3.15") == ["3.12", "3.13", "3.14"]
    assert wheel_tags.supported_pythons(listed, ">=3.11") == ["3.12"]


@pytest.mark.parametrize(
    ("tag", "glibc"),
    [
        ("manylinux1_x86_64", "2.5"),
        ("manylinux2010_x86_64", "2.12"),
        ("manylinux_2_27_x86_64.manylinux_2_28_x86_64", "2.27"),
        ("manylinux_2_28_x86_64.manylinux_2_27_x86_64", "2.27"),
        ("manylinux_2_9_x86_64.manylinux_2_28_x86_64", "2.9"),
        ("manylinux2014_x86_64.manylinux_2_17_x86_64", "2.17"),
        ("linux_x86_64", None),
    ],
)
def test_glibc_of_tags(tag, glibc):
    name = f"t-1-cp311-cp311-{tag}.whl"
    assert wheel_tags.glibc_of_tags(name) == glibc
    assert wheel_tags.parse_wheel_name(name)[2].glibc == glibc
