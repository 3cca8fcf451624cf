"""Servers that want to know who calls, over TLS and on Unix sockets."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ServerProcess

import anabranch
from anabranch._wire.access import Access, access_of
from anabranch._wire.connection import Connection, address_from
from anabranch.v1.access_pb2 import ROLE_READ, ROLE_WORK, Role
from anabranch.v1.admin_service_pb2 import CreateKeyRequest, RevokeKeyRequest
from anabranch.v1.admin_service_pb2_grpc import AdminServiceStub
from anabranch.v1.server_service_pb2 import GetServerInfoRequest, Principal


class KeyServer(ServerProcess):
    """A server whose callers need keys."""

    @property
    def key_file(self) -> Path:
        return self.folder / "admin.key"

    def _start(self, arguments: list[str]) -> None:
        super()._start([*arguments, "--auth", "required", "--admin-key-file", str(self.key_file)])

    def admin(self) -> AdminServiceStub:
        client = anabranch.connect(self.address, token=self.key_file, spool=False)
        return AdminServiceStub(client.connection.stubs.channel)

    def make_key(self, name: str, role: Role.ValueType, *namespaces: str) -> tuple[str, str]:
        """Returns the id and the secret of a new key."""
        made = self.admin().CreateKey(CreateKeyRequest(name=name, role=role, namespaces=namespaces))
        return made.key.id, made.secret


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, host: object) -> Iterator[KeyServer]:
    running = KeyServer(tmp_path_factory.mktemp("guarded"), host)  # type: ignore[arg-type]
    running.start()
    yield running
    running.kill()


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test gives to `connect` is not given to the next one."""
    monkeypatch.setattr("anabranch._wire.access._given", {})


def who(client: anabranch.Client) -> Principal:
    """Whom the server sees."""
    return client.connection.stubs.server.GetServerInfo(GetServerInfoRequest()).caller


def test_a_client_calls_with_its_token_in_a_namespace(guarded: KeyServer) -> None:
    _, secret = guarded.make_key("agent", ROLE_WORK, "a", "b")
    client = anabranch.connect(guarded.address, token=secret, namespace="b", spool=False)
    assert (who(client).name, who(client).namespace) == ("agent", "b")
    again = pickle.loads(pickle.dumps(client))
    assert (who(again).name, who(again).namespace) == ("agent", "b")


def test_the_environment_says_what_is_not_given(guarded: KeyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    _, secret = guarded.make_key("from-environment", ROLE_WORK, "a", "b")
    monkeypatch.setenv("ANABRANCH_ADDRESS", guarded.address)
    monkeypatch.setenv("ANABRANCH_TOKEN_FILE", str(guarded.key_file))
    assert who(anabranch.connect(spool=False)).name == "admin"
    monkeypatch.setenv("ANABRANCH_TOKEN", secret)
    monkeypatch.setenv("ANABRANCH_NAMESPACE", "a")
    assert who(anabranch.connect(spool=False)).namespace == "a"


def test_a_call_without_a_token_fails_and_says_so(guarded: KeyServer) -> None:
    client = anabranch.connect(guarded.address, spool=False)
    with pytest.raises(anabranch.errors.Unauthenticated, match="has no credential"):
        list(client.trajectories())


def test_a_refused_token_is_asked_for_once_more(guarded: KeyServer) -> None:
    id, old = guarded.make_key("rotated", ROLE_WORK)
    _, new = guarded.make_key("rotated", ROLE_WORK)
    guarded.admin().RevokeKey(RevokeKeyRequest(key_id=id))
    tokens = [old, new]
    # Before its first call, the client asks for version and limits.
    client = anabranch.connect(guarded.address, token=lambda: tokens.pop(0) if len(tokens) > 1 else new, spool=False)
    assert list(client.trajectories()) == []
    assert tokens == [new]


def test_what_a_key_may_not_do_stays_in_the_spool_until_one_may(guarded: KeyServer, tmp_path: Path) -> None:
    def run(token: str, code: str) -> str:
        begin = f"import anabranch; client = anabranch.connect({guarded.address!r}, spool={str(tmp_path)!r})"
        env = {**os.environ, "ANABRANCH_TOKEN": token}
        command = [sys.executable, "-c", f"{begin}\n{code}"]
        return subprocess.run(command, env=env, check=True, timeout=120, stderr=subprocess.PIPE, text=True).stderr

    _, reader = guarded.make_key("reader", ROLE_READ)
    _, worker = guarded.make_key("worker", ROLE_WORK)
    record = """
made = client.trajectory(name="kept")
made.step(reward=1.0)
try:
    made.flush(60)
except anabranch.errors.PermissionDenied:
    pass
else:
    raise AssertionError
"""
    assert "1 steps cannot be sent and are kept" in run(reader, record)
    run(worker, "client.flush(60)")
    stored = anabranch.connect(guarded.address, token=worker, spool=False).trajectories()
    assert [found.name for found in stored] == ["kept"]


def test_a_server_on_a_unix_socket_is_reached(tmp_path: Path, host: object) -> None:
    class SocketServer(ServerProcess):
        @property
        def address(self) -> str:
            return f"unix:{self.folder}/own/sock"

    running = SocketServer(tmp_path, host)  # type: ignore[arg-type]
    running.start()
    try:
        with anabranch.connect(running.address, namespace="mine", spool=False) as client:
            assert (who(client).name, who(client).namespace) == ("anonymous", "mine")
            made = client.trajectory(name="local")
            made.step(reward=1.0)
            made.flush(60)
            assert [found.name for found in client.trajectories()] == ["local"]
    finally:
        running.kill()


def certificate(folder: Path, name: str, names: str, issuer: str | None = None) -> None:
    """Creates NAME.crt and NAME.key, of an issuer in the folder or of its own."""
    command = ["openssl", "req", "-x509", "-noenc", "-days", "1", "-newkey", "ec"]
    command += ["-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.crt"]
    if issuer is not None:
        command += ["-addext", f"subjectAltName={names}", "-addext", "basicConstraints=critical,CA:FALSE"]
        command += ["-CA", f"{issuer}.crt", "-CAkey", f"{issuer}.key"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def test_a_client_shows_its_certificate(tmp_path: Path, host: object, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate(tmp_path, "authority", "")
    certificate(tmp_path, "server", "DNS:localhost,IP:127.0.0.1", "authority")
    certificate(tmp_path, "worker", "URI:spiffe://cluster/worker", "authority")
    mapping = "principals: [{ san: spiffe://cluster/worker, role: work, namespaces: [team-a] }]"
    (tmp_path / "principals.yaml").write_text(mapping)

    class CertificateServer(KeyServer):
        def _start(self, arguments: list[str]) -> None:
            tls = ["--tls-cert", str(tmp_path / "server.crt"), "--tls-key", str(tmp_path / "server.key")]
            more = ["--client-ca", str(tmp_path / "authority.crt"), "--principals", str(tmp_path / "principals.yaml")]
            super()._start([*arguments, *tls, *more])

    running = CertificateServer(tmp_path, host)  # type: ignore[arg-type]
    running.start()
    try:
        address, ca = f"https://{running.address}", tmp_path / "authority.crt"
        cert, key = tmp_path / "worker.crt", tmp_path / "worker.key"
        with anabranch.connect(address, ca=ca, cert=cert, key=key.read_bytes(), spool=False) as client:
            assert (who(client).name, who(client).namespace) == ("san:spiffe://cluster/worker", "team-a")
            made = client.trajectory(name="mine")
            made.step(reward=1.0)
            made.flush(60)
        for name, file in ("CA", ca), ("CERT", cert), ("KEY", key):
            monkeypatch.setenv(f"ANABRANCH_{name}_FILE", str(file))
        monkeypatch.setattr("anabranch._wire.access._given", {})
        with anabranch.connect(address, spool=False) as client:
            assert who(client).name == "san:spiffe://cluster/worker"
    finally:
        running.kill()
    with pytest.raises(ValueError, match="cert and key belong together"):
        anabranch.connect(address, cert=cert)
    monkeypatch.delenv("ANABRANCH_KEY_FILE")
    with pytest.raises(ValueError, match="ANABRANCH_CERT_FILE and ANABRANCH_KEY_FILE belong together"):
        anabranch.connect(address)


@pytest.mark.parametrize(
    ("address", "namespace", "expected"),
    [
        ("https://db.example:443", None, "https://db.example:443"),
        ("http://127.0.0.1:1/", "a", "127.0.0.1:1#a"),
        ("unix:///run/sock", None, "unix:/run/sock"),
        ("unix:/run/sock", "b", "unix:/run/sock#b"),
    ],
)
def test_an_address_names_its_namespace(address: str, namespace: str | None, expected: str) -> None:
    assert address_from(address, namespace) == expected


def test_a_namespace_that_none_can_have_is_refused() -> None:
    with pytest.raises(ValueError, match="namespace is 'No Name'"):
        address_from("127.0.0.1:1", "No Name")


def test_a_token_that_cannot_be_read_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert Access(tmp_path / "none").authorization() is None
    assert "the token cannot be read" in caplog.text
    assert access_of("127.0.0.1:1") == Access()
    assert Connection("127.0.0.1:1").address == "127.0.0.1:1"
