"""A throwaway sigstore on the loopback interface: Fulcio and Rekor in the form in which their interfaces are described.

It certifies whatever identity a token states, without looking at the token's signature, and each entry of its log is a
log of its own with one entry. What it answers is verified by the package `sigstore` as an answer of the real services.
"""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import struct
import threading
import time
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

ISSUER = "https://gitlab.example"
_SCT_LIST = x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
_ISSUER_V1 = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.1")
_ISSUER_V2 = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.8")


def make_token(subject: str, issuer: str = ISSUER, **claims) -> str:
    """Return a token as CI offers one to a job."""
    now = int(time.time())
    payload = {"aud": "sigstore", "iss": issuer, "sub": subject, "iat": now, "exp": now + 300, **claims}
    parts = [json.dumps(part).encode() for part in ({"alg": "RS256", "typ": "JWT"}, payload)] + [b"unsigned"]
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


class Sigstore:
    """The services and their keys; `requests` counts what was asked of them."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self._authority, self._certificates_log, self._log = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "throwaway")])
        self._root = (
            self._builder(name, self._authority.public_key(), timedelta(days=1), timedelta(days=1))
            .subject_name(name)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(authority=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._authority.public_key()), critical=False)
            .sign(self._authority, hashes.SHA256())
        )
        world = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                world.requests.append(self.path)
                if self.path == "/api/v2/signingCert":
                    answer = world.certify(body, self.headers["Authorization"].removeprefix("Bearer "))
                else:
                    answer = world.record(body)
                data = json.dumps(answer).encode()
                self.send_response(201)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                """Leave out the line that a server prints about each request."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def trust(self) -> str:
        """Return the `ClientTrustConfig` of these services."""
        valid = {"start": (datetime.now(UTC) - timedelta(days=2)).isoformat(timespec="seconds").replace("+00:00", "Z")}
        service = {"url": self._url, "validFor": valid, "operator": "test"}
        return json.dumps({
            "mediaType": "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json",
            "trustedRoot": {
                "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
                "tlogs": [self._log_instance(self._log, valid)],
                "ctlogs": [self._log_instance(self._certificates_log, valid)],
                "certificateAuthorities": [{
                    "subject": {"organization": "test", "commonName": "throwaway"},
                    "uri": self._url,
                    "certChain": {"certificates": [{"rawBytes": _b64(self._root.public_bytes(_DER))}]},
                    "validFor": valid,
                }],
                "timestampAuthorities": [],
            },
            "signingConfig": {
                "mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json",
                "caUrls": [{**service, "majorApiVersion": 1}],
                "oidcUrls": [{**service, "majorApiVersion": 1}],
                "rekorTlogUrls": [{**service, "majorApiVersion": 1}],
                "tsaUrls": [],
                "rekorTlogConfig": {"selector": "ANY"},
                "tsaConfig": {"selector": "ANY"},
            },
        })  # fmt: skip

    def certify(self, request, token: str):
        """Answer as Fulcio does: a certificate with the proof that it is in the log of certificates."""
        claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
        csr = x509.load_pem_x509_csr(base64.b64decode(request["certificateSigningRequest"]))
        issuer = claims["iss"].encode()
        builder = (
            self._builder(self._root.subject, csr.public_key(), timedelta(0), timedelta(minutes=10))
            .subject_name(x509.Name([]))
            .add_extension(_key_usage(authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._authority.public_key()), critical=False
            )
            .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(claims["sub"])]), critical=True)
            .add_extension(x509.UnrecognizedExtension(_ISSUER_V1, issuer), critical=False)
            .add_extension(
                x509.UnrecognizedExtension(_ISSUER_V2, b"\x0c" + bytes([len(issuer)]) + issuer), critical=False
            )
        )
        proof = self._certificate_timestamp(builder.sign(self._authority, hashes.SHA256()).tbs_certificate_bytes)
        builder = builder.add_extension(x509.UnrecognizedExtension(_SCT_LIST, proof), critical=False)
        chain = [builder.sign(self._authority, hashes.SHA256()), self._root]
        pems = [item.public_bytes(serialization.Encoding.PEM).decode() for item in chain]
        return {"signedCertificateEmbeddedSct": {"chain": {"certificates": pems}}}

    def record(self, proposed):
        """Answer as Rekor does: the entry with its proof of inclusion, the signed head of the log and a promise."""
        content = proposed["spec"]["proposedContent"]
        envelope = json.loads(content["envelope"])
        (signature,), (verifier,) = envelope["signatures"], content["verifiers"]
        body = _canonical({
            "apiVersion": "0.0.1",
            "kind": "dsse",
            "spec": {
                "envelopeHash": _hash(content["envelope"].encode()),
                "payloadHash": _hash(base64.b64decode(envelope["payload"])),
                "signatures": [{"signature": signature["sig"], "verifier": verifier}],
            },
        })  # fmt: skip
        root = hashlib.sha256(b"\x00" + body).digest()
        key_id = _key_id(self._log)
        note = f"throwaway\n1\n{_b64(root)}\n"
        head = f"{note}\n\N{EM DASH} throwaway {_b64(key_id[:4] + self._sign(note.encode()))}\n"
        entry = {"body": _b64(body), "integratedTime": int(time.time()), "logID": key_id.hex(), "logIndex": 0}
        promise = _b64(self._sign(_canonical(entry)))
        proof = {"logIndex": 0, "rootHash": root.hex(), "treeSize": 1, "hashes": [], "checkpoint": head}
        return {"0" * 64: {**entry, "verification": {"inclusionProof": proof, "signedEntryTimestamp": promise}}}

    def _sign(self, data: bytes) -> bytes:
        return self._log.sign(data, ec.ECDSA(hashes.SHA256()))

    def _certificate_timestamp(self, certificate: bytes) -> bytes:
        """Return the extension that says when a certificate (without that extension) was logged (RFC 6962)."""
        moment = int(time.time() * 1000)
        issuer = _key_id(self._authority)
        signed = struct.pack("!BBQH", 0, 0, moment, 1) + issuer + len(certificate).to_bytes(3) + certificate + b"\0\0"
        signature = self._certificates_log.sign(signed, ec.ECDSA(hashes.SHA256()))
        head = b"\0" + _key_id(self._certificates_log) + struct.pack("!QH", moment, 0)
        stamp = head + b"\x04\x03" + struct.pack("!H", len(signature)) + signature
        entry = struct.pack("!H", len(stamp)) + stamp
        data = struct.pack("!H", len(entry)) + entry
        return b"\x04" + (bytes([len(data)]) if len(data) < 128 else b"\x81" + bytes([len(data)])) + data

    def _builder(self, issuer, public_key, before: timedelta, after: timedelta) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .issuer_name(issuer)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - before - timedelta(seconds=2))
            .not_valid_after(now + after)
        )

    def _log_instance(self, key, valid):
        public = key.public_key().public_bytes(_DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        return {
            "baseUrl": self._url,
            "hashAlgorithm": "SHA2_256",
            "publicKey": {"rawBytes": _b64(public), "keyDetails": "PKIX_ECDSA_P256_SHA_256", "validFor": valid},
            "logId": {"keyId": _b64(hashlib.sha256(public).digest())},
        }


_DER = serialization.Encoding.DER


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _hash(data: bytes):
    return {"algorithm": "sha256", "value": hashlib.sha256(data).hexdigest()}


def _canonical(value) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _key_id(key) -> bytes:
    public = key.public_key().public_bytes(_DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(public).digest()


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )
