"""A walk finds every call that running the function would make, whatever is not known: compared with running it."""

from __future__ import annotations

import ast
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knowngood.facts import python_source
from knowngood.facts.abstract_values import UNKNOWN, ConstantValue
from knowngood.facts.call_walk import FunctionWalk

KNOWN = {"yes": True, "no": False}
FREE = ("u", "v")
HELPERS = """
def lengths(layout, forward=True):
    if layout == "thd":
        return [1, 2]
    if not forward:
        return [1]
    return []

def tile(kwargs, call, *, more=None):
    if more is not None:
        kwargs["more"] = more
    return call(0, **kwargs)
"""
SIMPLE = st.sampled_from(
    [
        "kwargs['alibi'] = None",
        "kwargs['softcap'] = 0.0",
        "kwargs.update(window=1)",
        "kwargs.update({'scale': 2})",
        "kwargs = dict(causal=True)",
        "kwargs = {**kwargs, 'drop': 0}",
        "kwargs = kwargs.copy()",
        "kwargs.pop('alibi', None)",
        "args = []",
        "args = [1] * 3",
        "args = [*args, 1]",
        "args = args + [1, 2]",
        "args.append(1)",
        "args += (1,)",
        "args = lengths('thd')",
        "args = lengths('bshd', forward=False)",
        "args = [1, 2] if yes else []",
        "args = [1] if u else [1, 2]",
        "chosen = target",
        "first, chosen = [1, target]",
        "target(*args, **kwargs)",
        "chosen(1, *args, x=2, **kwargs)",
        "out, rest = target(*args)",
        "tile(kwargs, target)",
        "tile(kwargs, chosen, more=1)",
        "tile(*[kwargs, target])",
        "result = [target(i) for i in range(1)]",
        "with open_() as f: target(**kwargs)",
        "for i in range(2): args.append(i)",
        "assert yes or no",
    ]
)
TESTS = st.sampled_from(
    ["yes", "no", "u", "not v", "yes and u", "no or v", "u and v", "yes is not None", "len(args) > 1"]
)


def blocks(children):
    return st.tuples(TESTS, st.lists(children, min_size=1, max_size=3), st.lists(children, max_size=2))


PROGRAMS = st.lists(st.recursive(SIMPLE, blocks, max_leaves=6), min_size=2, max_size=7)


def written(parts, indent="    "):
    lines = []
    for part in parts:
        if isinstance(part, str):
            lines.append(f"{indent}{part}")
            continue
        test, then, other = part
        lines += [f"{indent}if {test}:", *written(then, indent + "    ")]
        if other:
            lines += [f"{indent}else:", *written(other, indent + "    ")]
    return lines


class Scope:
    def lookup(self, node, state):
        name = node.id if isinstance(node, ast.Name) else ""
        if name in KNOWN:
            return ConstantValue(KNOWN[name])
        return state.get(name, UNKNOWN)

    def imported(self, _):
        return {}

    def compared(self, _):
        return None


class Result(tuple):
    __slots__ = ()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def performed(text, free):
    """The calls that running the function makes: (positional, keywords)."""
    made = []

    def target(*args, **kwargs):
        made.append((len(args), tuple(sorted(kwargs))))
        return Result((1, 2))

    names = {**KNOWN, **free, "open_": lambda: Result(()), "target": target}
    exec(text, names)  # noqa: S102 - the program above
    names["run"]()
    return made


@settings(max_examples=150, deadline=None)
@given(PROGRAMS)
def test_no_call_is_missed(program):
    text = HELPERS + "\n".join(["def run():", "    kwargs, args, chosen = {}, [], target", *written(program), ""])
    tree = ast.parse(text)
    functions = {name: node for name, node in python_source.list_functions(tree) if name != "run"}

    def matches(func, value):
        return ast.unparse(func) == "target" or value == ConstantValue("target")

    walk = FunctionWalk(functions=functions, matches=matches, scope=Scope())
    walk.body(python_source.find_function(tree, "run").body, {"target": ConstantValue("target")})
    for values in itertools.product([True, False], repeat=len(FREE)):
        try:
            made = performed(text, dict(zip(FREE, values, strict=True)))
        except (TypeError, AttributeError, ValueError):
            continue  # the program itself goes wrong with these values
        for positional, keywords in made:
            assert any(
                shape.positional in (None, positional)
                and (shape.more or shape.keywords == keywords)
                and set(shape.keywords) <= set(keywords) | ({"alibi"} if shape.more else set())
                for shape in walk.result.shapes
            ), (positional, keywords, walk.result.shapes, text)


@pytest.mark.parametrize(
    ("body", "positional", "keywords"),
    [
        ("target(1, *lengths('thd'), a=1)", 3, ("a",)),
        ("x = {'a': 1}\n    x['b'] = 2\n    target(**x)", 0, ("a", "b")),
        ("call = target if yes else None\n    call()", 0, ()),
        ("if no:\n        target(1)\n    else:\n        target(1, 2)", 2, ()),
    ],
)
def test_what_is_known_is_exact(body, positional, keywords):
    tree = ast.parse(f"{HELPERS}\ndef run():\n    {body}\n")
    functions = {name: node for name, node in python_source.list_functions(tree) if name != "run"}
    walk = FunctionWalk(functions=functions, matches=lambda _, value: value == ConstantValue("target"), scope=Scope())
    walk.body(python_source.find_function(tree, "run").body, {"target": ConstantValue("target")})
    assert [(shape.positional, shape.keywords, shape.more) for shape in walk.result.shapes] == [
        (positional, keywords, False)
    ]
