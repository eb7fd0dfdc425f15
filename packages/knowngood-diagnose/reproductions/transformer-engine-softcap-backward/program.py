"""TransformerEngine's own statements under context parallelism call flash-attn's functions as the release defines them.

Out of the release's attention.py: what it imports from flash-attn, which of its version flags hold, how the ring
(AttnFuncWithCPAndKVP2P) collects the keyword arguments, and the call. Out of flash-attn: the functions' arguments, with
empty bodies. The statements are run; nothing else of either package is, and no GPU is needed. With the argument
`two-gpus` it is the installed packages on two GPUs instead (two_gpus.py).
"""

import ast
import json
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

from packaging.version import Version

ATTENTION = "sources/transformer_engine/pytorch/attention.py"
FLASH_ATTN = "sources/flash_attn/flash_attn_interface.py"
RING = ("AttnFuncWithCPAndKVP2P", "AttnFuncWithCP")


class Names(dict):
    """Tensors and buffers may be anything: an empty function takes them all."""

    def __missing__(self, name):
        return MagicMock(name=name)


def run(statement, names):
    module = ast.fix_missing_locations(ast.Module([statement], []))
    exec(compile(module, "TransformerEngine", "exec"), {}, names)  # noqa: S102


def signature(name):
    """flash-attn's function with its arguments and defaults, and nothing in it."""
    tree = ast.parse(Path(FLASH_ATTN).read_text())
    (found,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    found.body, found.decorator_list, found.returns = [ast.Return(None)], [], None
    for argument in [*found.args.args, *found.args.kwonlyargs]:
        argument.annotation = None
    made = {}
    run(found, made)
    return made[name]


def mentions(node, *names):
    return any(isinstance(item, ast.Name) and item.id in names for item in ast.walk(node))


def blocks(node):
    """Every list of statements below a node."""
    for item in ast.walk(node):
        for field in ("body", "orelse", "finalbody"):
            if isinstance(getattr(item, field, None), list):
                yield getattr(item, field)


def call(method, functions, names):
    """Run the ring's statements that make the arguments, and each of its calls, in their order."""
    found = []
    for block in blocks(method):
        for place, statement in enumerate(block):
            value = getattr(statement, "value", None)
            if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in functions:
                found.append((statement.lineno, value, block[:place]))
    for line, value, before in sorted(found, key=lambda item: item[0]):
        keywords = next(item.value.id for item in value.keywords if item.arg is None)
        starred = [item.value.id for item in value.args if isinstance(item, ast.Starred)]
        for statement in method.body:
            if mentions(statement, keywords) and not isinstance(statement, ast.For):
                run(statement, names)
        for statement in before:
            if isinstance(statement, ast.If | ast.Assign) and mentions(statement, keywords, *starred):
                run(statement, names)
        positional = len(value.args) + sum(len(names[name]) - 1 for name in starred)
        given = sorted({*names[keywords], *(item.arg for item in value.keywords if item.arg)})
        print(f"line {line}: {value.func.id}({positional} positional, {', '.join(given)})", flush=True)
        run(ast.Expr(value), names)
    if not found:
        raise SystemExit(f"no call of {' or '.join(functions)}")


if sys.argv[1:2] == ["two-gpus"]:
    import two_gpus

    two_gpus.main(sys.argv[2])
    raise SystemExit

tree = ast.parse(Path(ATTENTION).read_text())
installed = Version(version("flash-attn"))
names = Names(
    _flash_attn_version=installed, PkgVersion=Version, qkv_format="thd", causal=True, use_fused_attention=False
)
names |= {"_use_flash_attn_3": False, "use_flash_attn_3": False}
names["ctx"] = SimpleNamespace(softmax_scale=1.0, dropout_p=0.0, deterministic=False, use_fused_attention=False)
names["ctx"].qkv_format, names["ctx"].max_seqlen_q, names["ctx"].max_seqlen_kv = "thd", 8, 8
called = {"_flash_attn_varlen_forward": {"flash_attn_fwd"}, "_flash_attn_varlen_backward": {"flash_attn_bwd"}}
for node in ast.walk(tree):
    if isinstance(node, ast.ImportFrom) and node.module == "flash_attn.flash_attn_interface":
        for alias in node.names:
            if alias.name in called:
                names[alias.asname or alias.name] = signature(alias.name)
                called[alias.name].add(alias.asname or alias.name)
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Compare):
        flag = node.targets[0]
        if isinstance(flag, ast.Name) and flag.id.startswith("_flash_attn_2_"):
            run(node, names)
(ring,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in RING]
methods = {item.name: item for item in ring.body if isinstance(item, ast.FunctionDef)}
call(methods["forward"], called["_flash_attn_varlen_forward"], names)
call(methods["backward"], called["_flash_attn_varlen_backward"], names)
print(json.dumps({"binds": True, "flash-attn": str(installed), "transformer-engine": version("transformer-engine")}))
