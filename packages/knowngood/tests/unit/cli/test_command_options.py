"""Each command declares exactly the options that it reads.

The test follows the parsed arguments through the syntax trees of `knowngood.cli`, from `run(arguments)` into each
function that they are passed to.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import re
import sys
from functools import cache

import pytest

from knowngood.cli import main, shared_arguments
from samples import FA4


@cache
def command_module(command: str):
    module = main.all_commands()[command].module
    return importlib.import_module(module or f"knowngood.cli.{command.replace('-', '_')}")


@cache
def source_tree(module) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def function_called(node: ast.expr, module):
    """Return the function of `knowngood.cli` that an expression names, or `None`."""
    if isinstance(node, ast.Name):
        value = getattr(module, node.id, None)
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        holder = getattr(module, node.value.id, None) or sys.modules.get(f"knowngood.cli.{node.value.id}")
        value = getattr(holder, node.attr, None)  # of a module that a function imports late, too
    else:
        return None
    return value if inspect.isfunction(value) and re.match(r"knowngood\w*\.cli\b", value.__module__) else None


def attributes_read(function, name: str = "arguments", done: frozenset = frozenset()) -> set[str]:
    """Return the attributes of the parameter `name` that a function reads, itself or through the functions it calls."""
    if function in done or function.__name__ == "refuse_options":
        return set()
    done |= {function}
    module = inspect.getmodule(function)
    definition = next(
        node
        for node in source_tree(module).body
        if isinstance(node, ast.FunctionDef) and node.name == function.__name__
    )
    names = set()
    for node in ast.walk(definition):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name:
            names |= {node.attr} if isinstance(node.ctx, ast.Load) else set()
        if isinstance(node, ast.Call):
            positions = [
                index for index, item in enumerate(node.args) if isinstance(item, ast.Name) and item.id == name
            ]
            if not positions:
                continue
            if isinstance(node.func, ast.Name) and node.func.id == "getattr":
                names.add(ast.literal_eval(node.args[1]))
                continue
            candidates = [function_called(node.func, module)]
            if isinstance(node.func, ast.Name) and candidates == [None]:  # a local name for one of several functions
                candidates = [
                    function_called(choice, module)
                    for item in ast.walk(definition)
                    if isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == node.func.id
                    for choice in (getattr(item.value, "body", item.value), getattr(item.value, "orelse", item.value))
                ]
            assert all(candidates), f"{function.__name__} passes its arguments to {ast.unparse(node.func)}"
            for called in candidates:
                parameter = list(inspect.signature(called).parameters)[positions[0]]
                names |= attributes_read(called, parameter, done)
    return names


def options(command: str) -> dict[str, argparse.Action]:
    (commands,) = (action for action in main.build_parser(command)._actions if action.dest == "command")
    return {action.dest: action for action in commands.choices[command]._actions if action.dest not in ("help", "json")}


COMMANDS = main.all_commands()

OPTIONAL = {name: {"pick", "add"} for name in ("files", "here", "extras", "groups", "nvcc", "glibc")}
OPTIONAL |= {"timeout": {"build-matrix", "nightly"}}
"""Options that code shared by several commands reads, with the commands that do not have them."""


WORDED = {command: module.WORDS for command in COMMANDS if hasattr(module := command_module(command), "WORDS")}


@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - WORDED.keys()))
def test_a_command_has_the_options_that_it_reads(command):
    read = {name for name in attributes_read(command_module(command).run) if command not in OPTIONAL.get(name, ())}
    read -= {"json"}  # every command has it
    assert read == set(options(command))


def test_the_check_finds_an_option_that_nothing_reads():
    read = attributes_read(command_module("build").run)
    assert {"select", "record", "builder"} <= read
    assert not {"quick", "gpus", "timeout"} & read


@pytest.mark.parametrize(("command", "word"), [(command, word) for command in WORDED for word in WORDED[command]])
def test_a_word_of_a_command_has_the_options_that_it_reads(command, word):
    parser = argparse.ArgumentParser(add_help=False)
    WORDED[command][word].configure(parser)
    declared = {action.dest for action in parser._actions}
    run = WORDED[command][word].run
    (parameter,) = inspect.signature(run).parameters
    assert declared == attributes_read(run, parameter)


@pytest.mark.parametrize("retired", main.RETIRED)
def test_a_retired_word_names_a_successor_that_is_there(retired, capsys):
    assert main.main([*(["publish"] if retired.startswith("-") else []), *retired.split()]) == 2
    error = capsys.readouterr().err
    assert error == f"knowngood: `{retired}` {main.RETIRED[retired]}\n"
    for text in re.findall(r"`knowngood ([^`]+)`", main.RETIRED[retired]):
        command, *words = text.split()
        declared = options(command) if command in COMMANDS else {}  # of a distribution that is not installed
        for word in words if declared else ():
            names = [name for action in declared.values() for name in (*action.option_strings, *(action.choices or ()))]
            assert word in names, text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(
            ["check", "--batch", "-", "--gpu", "H100"], "--gpu does nothing with --batch", marks=pytest.mark.whole
        ),
        pytest.param(
            ["check", "--batch", "-", "torch==2.6.0"],
            "NAME==VERSION does nothing with --batch",
            marks=pytest.mark.whole,
        ),
        (["lock", "--base", "debian12", "default"], "SELECT does nothing with --base"),
        (["lock", "--base", "debian12", "--upgrade"], "--upgrade does nothing with --base"),
        (["publish", "--verify", "x/y:z", "--no-aliases"], "--no-aliases does nothing with --verify"),
        pytest.param(
            ["harvest", "--atlas", "--refresh"],
            "--refresh belongs to a harvest",
            marks=pytest.mark.whole,
        ),
        (["build", "--timeout", "5"], "unrecognized arguments: --timeout"),
        (["smoke", "here", FA4, "--again"], "unrecognized arguments: --again"),
        (["smoke", "parallel", "--processes", "3"], "'3' is not an even number"),
        (["smoke", "parallel", "--here", "--again"], "unrecognized arguments: --again"),
    ],
)
@pytest.mark.usefixtures("home")
def test_an_option_without_effect_is_refused(words, message, capsys):
    assert main.main(words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("words", "memory"), [([], "12g"), (["--gpus"], "24g")])
def test_a_run_with_gpus_has_more_memory(words, memory):
    arguments = main.build_parser("smoke", alone=True).parse_args(["smoke", "run", *words])
    assert shared_arguments.suite_options_from_arguments(arguments).memory == memory
