from __future__ import annotations

import dataclasses
import json

import pytest

from knowngood.core import image_record
from knowngood.core.errors import UsageError
from plan_samples import A, built, shape


def test_a_record_is_parsed_as_it_was_rendered():
    made = built(A)
    assert image_record.parse_image_record(made.render(), "f") == made
    assert json.loads(made.render())["inputs"] == A.shape.inputs
    assert made.size == 2 + 6 * 7


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("knowngood/image/1", "knowngood/image/9", "schema"),
        ('"lock": "aaaa', '"lock": "bbbb', "changed by hand"),
        ('"digest"', '"digset"', "the key 'digest' is missing in manifest"),
        ("{", "", "not well-formed JSON"),
    ],
)
def test_a_damaged_record_is_refused(old, new, message):
    with pytest.raises(UsageError, match=rf"^f.*{message}.*--record"):
        image_record.parse_image_record(built(A).render().replace(old, new, 1), "f")


def test_a_record_with_a_negative_size_is_refused():
    made = built(A)
    text = dataclasses.replace(made, config=dataclasses.replace(made.config, size=-1000)).render()
    with pytest.raises(UsageError, match=r"config\.size must be a whole number from 0 .* not -1000"):
        image_record.parse_image_record(text, "f")


def test_a_layer_that_only_one_of_two_images_has_is_a_difference():
    made = built(A)
    less = dataclasses.replace(made, layers=made.layers[:-1])
    assert made.differences(less) == [made.layers[-1].name]
    assert less.differences(made) == [made.layers[-1].name]


@pytest.mark.parametrize("name", ["base", "recipe", "uv", "export"])
def test_layers_are_shared_only_where_everything_that_determines_them_is_the_same(name):
    assert shape("a").layer_inputs != shape("a", **{name: "another"}).layer_inputs


@pytest.mark.parametrize("name", ["dockerfile", "lock"])
def test_what_determines_the_image_but_no_layer_of_wheels_leaves_the_layers_shared(name):
    assert shape("a").layer_inputs == shape("a", **{name: "another"}).layer_inputs
    assert shape("a").inputs != shape("a", **{name: "another"}).inputs


def test_differences_name_the_layers():
    made = built(A)
    first, *rest = made.layers
    other = dataclasses.replace(made, layers=(dataclasses.replace(first, digest="sha256:0"), *rest))
    assert made.differences(other) == [first.name]
    other = dataclasses.replace(made, config=dataclasses.replace(made.config, digest="sha256:0"))
    assert made.differences(other) == ["config"]
    assert made.differences(dataclasses.replace(made, manifest=other.config)) == ["manifest"]
    assert made.differences(made) == []
