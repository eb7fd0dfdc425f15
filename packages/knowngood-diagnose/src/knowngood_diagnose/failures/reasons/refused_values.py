"""Which value a function, a data set or a configuration does not take, and the limits that a message states. Pure."""

from __future__ import annotations

from dataclasses import replace

from knowngood.core.lazy_patterns import lazy_pattern
from knowngood_diagnose.failures.logs.last_errors import LastError, redact_secrets
from knowngood_diagnose.failures.names.name_situation import advise
from knowngood_facts.compat.incident import Incident, OwnComponent

_INVOKED = lazy_pattern(
    r"supported: 1\. (?:self: \S+ )?(?P<name>[\w.]+)\((?P<takes>[^)]{0,600})\).{0,1500}?Invoked with: "
    r"(?P<given>.{1,300})"
)
_GIVEN_NONE = lazy_pattern(r"(?:^|, )None(?=,|$)")


def describe_invoked(incident: Incident, error: LastError) -> Incident | None:
    """An argument that is None where the compiled function takes a value."""
    stated = _INVOKED.search(error.message)
    if stated is None or "None" in stated["takes"] or not _GIVEN_NONE.search(stated["given"]):
        return None
    given = [part.strip() for part in stated["given"].split(",")]
    takes = [part.strip() for part in stated["takes"].split(",")]
    at = given.index("None") if "None" in given else 0
    what = takes[at] if at < len(takes) else "one of its arguments"
    is_store = stated["name"].endswith("TCPStore")
    because = f"{stated['name']} takes ({stated['takes']}), and was called with ({stated['given'].strip()})."
    fixes = [advise(f"Look in the traceback where the program sets that value ({what}); give it, or do not pass it")]
    title = f"The program passes None to {stated['name']} where it takes {what}"
    if is_store:
        because += " It is the address of the first process, in init_method (tcp://HOST:PORT) or MASTER_ADDR."
        fixes.insert(
            0, advise("The address in the option: --dist_url tcp://127.0.0.1:PORT on one machine, or MASTER_ADDR")
        )
        title = "The address of the first process is empty in init_method (tcp://HOST:PORT)"
    return replace(incident, title=title, because=because, component=OwnComponent.YOUR_CODE, fix=tuple(fixes))


_REFUSED = lazy_pattern(
    r"validation errors? for (?P<owner>\S{1,80}) (?P<field>\S{1,120}) (?P<words>.{1,160}?) \[type=\w+"
    r"(?:, input_value=(?P<value>.{1,80}?), input_type=(?P<kind>\w{1,40})\])?"
)


def describe_fields(incident: Incident, error: LastError) -> Incident | None:
    """Return the failure with the first field that is refused, and why; `None` where the log does not say it."""
    refused = _REFUSED.search(error.message)
    if refused is None:
        return None
    sentence = f"Here it is {refused['field']} of {refused['owner']}: {refused['words']}"
    if refused["kind"]:
        sentence += f", and it was given a {refused['kind']} ({redact_secrets(refused['value'])})"
    return incident.tell("fields", sentence=sentence)


_SHARED = lazy_pattern(r"shared memory,? ?Required: (?P<wanted>\d+),? ?Hardware limit: (?P<limit>\d+)")
_LARGEST = 232_448
"""The most shared memory a block, in bytes, that a message stated: on an H200, in evidence/models/deepseek_v3."""
_LIMITS = ((_LARGEST, "H100 and H200"),)
"""Bytes and the cards that state them as their limit, the smallest first; what no message here stated is left out."""
_LISTED = lazy_pattern(r"['\"](?P<path>:+/[^'\"\n]{1,300}|/[^'\"\n:]{1,300}:/[^'\"\n]{0,300})/bin/nvcc['\"]")
_BOUND = lazy_pattern(
    r"failed to bind to (?:\[[^\]\s]*\]|[\w.-]+):(?P<port>\d{1,5})\b|"
    r"\(port: (?P<stated>\d{1,5})\)|(?:localhost|127\.0\.0\.1|0\.0\.0\.0|\*):(?P<other>\d{1,5})\b.{0,80}in use",
)
_USUAL, _PRIVILEGED = 29_500, 1_024
_SERVICES = {22: "ssh", 80: "a web server", 111: "rpcbind", 443: "a web server", 631: "the printing service"}
_NEAR = 4_000


def describe_shared_memory(incident: Incident, error: LastError) -> Incident | None:
    """A demand of shared memory, compared with what GPUs have."""
    stated = _SHARED.search(error.message)
    if stated is None:
        return None
    wanted, limit = int(stated["wanted"]), int(stated["limit"])
    if wanted > _LARGEST:
        return incident.tell("too-much", wanted=wanted, limit=limit, largest=_LARGEST)
    has = next((names for most, names in _LIMITS if most >= wanted and most > limit), "")
    if not has:
        return None
    return incident.tell("shared-memory", wanted=wanted, limit=limit, has=has)


def describe_toolkit_path(incident: Incident, error: LastError) -> Incident | None:
    """A path of the CUDA toolkit that is a list with colons, as PATH is, where one folder is wanted."""
    stated = _LISTED.search(f"{error.message} {error.text}")
    if stated is None:
        return None
    path = stated["path"]
    folder = next((part for part in reversed(path.split(":")) if part), "/usr/local/cuda")
    return incident.tell("toolkit-path", path=path, folder=folder)


def describe_port(incident: Incident, error: LastError) -> Incident | None:
    """The number of the port that is taken, and whose it mostly is."""
    above = error.above[-_NEAR:].decode("utf-8", "replace")
    places = list(_BOUND.finditer(f"{above}\n{error.text} {error.message}"))
    port = int(next(text for text in places[-1].groups() if text)) if places else 0
    if not 0 < port < _PRIVILEGED:
        if not port or port == _USUAL:
            return None
        return incident.tell("taken", port=port)
    service = _SERVICES.get(port, "a service of the system")
    whose = f"is that of {service}" if port in _SERVICES else f"belongs to {service}"
    return incident.tell("of-service", port=port, whose=whose)


_TWO_DTYPES = lazy_pattern(r"got torch\.(?P<one>\w+) and torch\.(?P<other>\w+)")


def describe_mixed_dtypes(incident: Incident, error: LastError) -> Incident | None:
    """Say whose parameters have the two dtypes; `None` where the message does not name them."""
    dtypes = _TWO_DTYPES.search(error.message)
    if dtypes is None:
        return None
    pair = {dtypes["one"], dtypes["other"]}
    quantized = sorted(pair & {"int8", "uint8"})
    if not quantized:
        one, other = dtypes["one"], dtypes["other"]
        return incident.tell("two-dtypes", one=one, other=other)
    rest = next(iter(pair - set(quantized)), "another dtype")
    bits = "8 bits" if quantized == ["int8"] else "4 bits"
    without = advise("Without quantisation under FSDP, or with it and without FSDP (DDP, one GPU)")
    storage = advise(f"4 bits with bnb_4bit_quant_storage=torch.{rest}, so that all parameters have one dtype")
    return replace(
        incident.tell("quantized", bits=bits, quantized=quantized[0], rest=rest),
        fix=(without, storage) if bits == "8 bits" else (storage, without),
    )
