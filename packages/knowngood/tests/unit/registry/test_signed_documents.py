"""What is signed: sigstore's payload and DSSE envelopes; malformed ones are refused with a sentence."""

from __future__ import annotations

import base64
import json

import pytest

from knowngood.core.errors import KnowngoodError
from knowngood.registry import signed_documents
from knowngood.registry.signed_documents import SignedName

DIGEST = "sha256:" + "d" * 64
NAME = SignedName(reference="registry.example:5000/team/images:default", digest=DIGEST)


def test_the_payload_is_sigstores():
    payload = NAME.payload("knowngood 1")
    assert json.loads(payload) == {
        "critical": {
            "identity": {"docker-reference": "registry.example:5000/team/images:default"},
            "image": {"docker-manifest-digest": DIGEST},
            "type": "cosign container image signature",
        },
        "optional": {"creator": "knowngood 1"},
    }
    assert signed_documents.parse_payload(payload) == NAME


@pytest.mark.parametrize(
    ("reference", "tag"),
    [("registry.example:5000/a", None), ("registry.example:5000/a:b", "b"), ("registry.example/a:c-1", "c-1")],
)
def test_a_port_is_no_tag(reference, tag):
    name = SignedName(reference=reference, digest=DIGEST)
    assert (name.tag, name.repository) == (tag, reference.removesuffix(f":{tag}"))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b"\xff",
        NAME.payload("x").replace(b"cosign container", b"another"),
        NAME.payload("x").replace(f'"{DIGEST}"'.encode(), b"7"),
        NAME.payload("x").replace(b'{"critical"', b'{"critical":{},"critical"'),
    ],
)
def test_what_is_no_payload_is_refused(data):
    with pytest.raises(KnowngoodError, match="is not the payload of a signature"):
        signed_documents.parse_payload(data)


def test_dsse_signs_type_and_payload_as_its_specification_says():
    """The example of DSSE's protocol document, with our payload type."""
    signed = []
    signed_documents.sign_statement(b"hello world", lambda data: signed.append(data) or b"s")
    assert signed == [b"DSSEv1 28 application/vnd.in-toto+json 11 hello world"]


def envelope(**changes) -> bytes:
    document = json.loads(signed_documents.sign_statement(b'{"predicateType": "p"}', lambda _: b"good"))
    return json.dumps(document | changes).encode()


def is_good(signature: bytes, _data: bytes) -> bool:
    return signature == b"good"


def test_an_envelope_gives_its_statement():
    assert signed_documents.verify_envelope(envelope(), is_good) == {"predicateType": "p"}
    assert signed_documents.verify_envelope(envelope(more=[1]), is_good) == {"predicateType": "p"}


def test_a_damaged_document_is_told_with_its_place():
    text = b'{"critical": 1,\n "critical": 2}'
    with pytest.raises(KnowngoodError, match=r"\(line 2, column 2: the key 'critical' is given twice"):
        signed_documents.parse_payload(text)


def test_a_statement_says_the_same_as_the_payload():
    statement = json.loads(NAME.statement())
    assert signed_documents.parse_sign_statement(statement) == NAME
    # cosign names no reference: such a signature is for no repository, so that it counts in none
    statement["subject"][0].pop("name")
    assert signed_documents.parse_sign_statement(statement).repository == ""


@pytest.mark.parametrize(
    "subject",
    [None, [], {}, [{}], [{"digest": {}}], [{"digest": {"sha256": 1}}], [{"digest": {"sha256": "d"}}] * 2, ["x"]],
)
def test_a_statement_of_no_or_of_many_manifests_signs_nothing(subject):
    with pytest.raises(KnowngoodError, match="is not about one manifest"):
        signed_documents.parse_sign_statement({"subject": subject})


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        envelope(payload="%"),
        envelope(signatures=[]),
        envelope(signatures=[{"sig": base64.b64encode(b"bad").decode()}]),
        envelope(signatures=[{"sig": "%"}]),
        envelope(payloadType="text/plain"),
        envelope(payload=base64.b64encode(b"[1]").decode()),
        envelope().replace(b'{"payloadType"', b'{"payloadType": "x", "payloadType"'),
        b"[" * 100_000,
    ],
)
def test_a_malformed_or_unsigned_envelope_is_refused(data):
    with pytest.raises(KnowngoodError):
        signed_documents.verify_envelope(data, is_good)


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ({"predicateType": "q", "subject": []}, "is a q, not a p"),
        ({"predicateType": "p"}, "not of this image"),
        ({"predicateType": "p", "subject": [{"digest": {"sha256": "e" * 64}}]}, "not of this image"),
        ({"predicateType": "p", "subject": [{"digest": {"sha256": "d" * 64}}] * 2}, "not of this image"),
    ],
)
def test_a_statement_is_about_the_image_alone(statement, words):
    with pytest.raises(KnowngoodError, match=words):
        signed_documents.check_statement(statement, "p", DIGEST)
    signed_documents.check_statement({"predicateType": "p", "subject": [{"digest": {"sha256": "d" * 64}}]}, "p", DIGEST)
