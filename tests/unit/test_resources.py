from pathlib import Path

import pytest

from knowngood import resources


@pytest.fixture(autouse=True)
def _anew():
    resources.root.cache_clear()
    yield
    resources.root.cache_clear()


def test_in_a_checkout_it_is_the_checkout():
    assert (resources.root() / "facts" / "torch.json").exists()
    assert resources.root() == Path(__file__).parents[2]


def test_installed_it_is_the_folder_in_the_package(monkeypatch, tmp_path):
    package = tmp_path / "site-packages" / "knowngood"
    package.mkdir(parents=True)
    monkeypatch.setattr(resources, "_PACKAGE", package)
    assert resources.root() == package / "_data"


def test_a_folder_named_src_alone_is_no_checkout(monkeypatch, tmp_path):
    monkeypatch.setattr(resources, "_PACKAGE", tmp_path / "src" / "knowngood")
    assert resources.root() == tmp_path / "src" / "knowngood" / "_data"
