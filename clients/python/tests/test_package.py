"""The package: its version, and what an import of it loads."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest
from conftest import IS_LARGE_DOSE, ROOT, Server, package_version

import anabranch

LOADED = "import sys, anabranch; print([name for name in ('grpc', 'google.protobuf', 'numpy') if name in sys.modules])"
CPU_TIME = """
import time
before = time.process_time()
import anabranch
print((time.process_time() - before) * 1000)
"""


def run(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.strip()


def test_server_and_sdk_have_one_version(server: Server) -> None:
    from anabranch.v1.server_service_pb2 import GetServerInfoRequest
    from anabranch.v1.server_service_pb2_grpc import ServerServiceStub

    info = ServerServiceStub(anabranch.connect(server.address).connection.stubs.channel)
    assert info.GetServerInfo(GetServerInfoRequest(), timeout=20).version == anabranch.__version__
    client, both = ((ROOT / each / "pyproject.toml").read_text() for each in ("clients/python", "pip"))
    for project in client, both:
        assert (
            re.findall(r'^version = "(.+)"$', project, re.MULTILINE) == [anabranch.__version__] == [package_version()]
        )
    assert f'"anabranch-client=={anabranch.__version__}"' in both


def test_the_extra_all_has_every_other_one_and_both_packages_have_the_same() -> None:
    client, both = (
        re.findall(
            r"\[project\.optional-dependencies\]\n(.+?)\n\n", (ROOT / each / "pyproject.toml").read_text(), re.DOTALL
        )[0]
        for each in ("clients/python", "pip")
    )
    extras = re.findall(r"^([\w-]+) = ", client, re.MULTILINE)
    assert extras.pop() == "all"
    assert f'all = ["anabranch-client[{",".join(extras)}]"]' in client
    assert both.splitlines() == [f'{extra} = ["anabranch-client[{extra}]"]' for extra in [*extras, "all"]]


def test_import_loads_neither_grpc_nor_numpy() -> None:
    assert run(LOADED) == "[]"


def test_import_takes_at_most_40_ms() -> None:
    assert min(float(run(CPU_TIME)) for _ in range(5)) <= 40


def test_every_public_name_can_be_imported() -> None:
    for name in anabranch.__all__:
        assert getattr(anabranch, name) is not None


def test_the_stubs_are_those_of_the_protos() -> None:
    stubs = Path(anabranch.__file__).parent / "v1"
    assert {path.name for path in stubs.glob("*_pb2.py")} == {
        path.name for path in (ROOT / "gen/python/anabranch/v1").glob("*_pb2.py")
    }


ORDERS = {
    "before": "import google.rpc.status_pb2, google.rpc.error_details_pb2\nimport anabranch.v1.trajectory_service_pb2_grpc",
    "after": "import anabranch.v1.trajectory_service_pb2_grpc\nimport google.rpc.status_pb2, google.rpc.error_details_pb2",
}


@pytest.mark.parametrize("order", ORDERS)
def test_the_stubs_load_beside_googleapis_common_protos(order: str) -> None:
    """A copy of these protos in the package would raise `duplicate file name google/rpc/status.proto`."""
    assert run(f"{ORDERS[order]}\nprint(google.rpc.status_pb2.DESCRIPTOR.name)") == "google/rpc/status.proto"
    assert not (ROOT / "gen/python/google").exists()


#: Makes an installed package unimportable.
WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {module!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
import anabranch as ab
from anabranch._wire.connection import Connection
from anabranch._reading.read import Selection
from anabranch.episodes import Episodes
episodes = Episodes(Connection("127.0.0.1:7"), Selection(ids=()))
try:
    {use}
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("module", "use", "package"),
    [
        ("pyarrow", "episodes.to_arrow()", "pyarrow"),
        ("pandas", "episodes.to_pandas()", "pandas"),
        ("datasets", "episodes.to_hf()", "datasets"),
        ("torch", "episodes.to_torch()", "torch"),
        ("minari", "episodes.to_minari('a/b-v0')", "minari"),
        ("h5py", "episodes.to_minari('a/b-v0')", "h5py"),
        ("numpy", "episodes.tokens(pad_id=0)", "numpy"),
        ("gymnasium", "ab.gym.Record(None, None)", "gymnasium"),
    ],
)
def test_the_error_for_a_missing_package_names_it(module: str, use: str, package: str) -> None:
    printed = run(WITHOUT.format(module=module, use=use))
    assert re.fullmatch(rf"{package} is required .+: pip install {package}", printed), printed


def test_a_client_can_be_pickled() -> None:
    client = anabranch.connect("http://127.0.0.1:7", strict=True, spool=False)
    copy = pickle.loads(pickle.dumps(client))
    assert (copy.address, copy.strict) == ("127.0.0.1:7", True)


@pytest.mark.parametrize(
    "address",
    [
        *("localhost", "ftp://a:1", "https://a:1/b", "http://a:1/b", "::1:50051", "unix:"),
        *("a:", ":1", "a:0", "a:65536", "a:-1", "a:1e3", "a:port"),
        *(" ", " a:1", "a:1 ", "a:1\n", "a\n:1", "a b:1", "a\t:1"),
    ],
)
def test_connect_names_a_bad_address(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for connect in anabranch.connect, anabranch.aio.connect:
        with pytest.raises(ValueError, match=re.escape(f"address is {address!r}: expected HOST:PORT")):
            connect(address)
        with monkeypatch.context() as patch:
            patch.setenv("ANABRANCH_ADDRESS", address)
            with pytest.raises(ValueError, match=re.escape(f"ANABRANCH_ADDRESS is {address!r}: expected HOST:PORT")):
                connect()


@pytest.mark.parametrize("address", ["user:s3cret@a:1", "http://user:s3cret@a:1"])
def test_the_error_of_an_address_has_no_password(address: str) -> None:
    with pytest.raises(ValueError, match="…@a:1': expected HOST:PORT") as raised:
        anabranch.connect(address)
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize("address", ["a-b.example:1", "127.0.0.1:65535", "[::1]:1", "http://[::1]:1/"])
def test_connect_takes_names_and_addresses_of_both_families(address: str) -> None:
    assert anabranch.connect(address).address == address.removeprefix("http://").rstrip("/")


PROXIES = ["http_proxy", "https_proxy", "grpc_proxy"]
#: Prints the error of a call.
CALL = "import sys, anabranch as ab\ntry: ab.connect(sys.argv[1]).run('x')\nexcept ab.AnabranchError as error: print(error)"


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("variable", PROXIES)
def test_a_server_of_this_machine_is_reached_without_a_proxy(server: Server, variable: str, name: str) -> None:
    environ = {**os.environ, variable: "http://user:s3cret@127.0.0.1:9"}
    command = [sys.executable, "-c", CALL, f"{name}:{server.port}"]
    printed = subprocess.run(command, env=environ, check=True, text=True, capture_output=True).stdout
    assert printed.startswith('Run "x" does not exist')


@pytest.mark.parametrize("variable", PROXIES)
def test_errors_behind_a_proxy_name_the_server_and_the_variable(variable: str) -> None:
    environ = {**os.environ, variable: "http://user:s3cret@127.0.0.1:9"}
    command = [sys.executable, "-c", CALL, "server.invalid:50051"]
    printed = subprocess.run(command, env=environ, check=True, text=True, capture_output=True).stdout
    assert printed.startswith(f"no server answers at server.invalid:50051 through the proxy of `{variable}`: ")
    assert "127.0.0.1" not in printed and "s3cret" not in printed


def test_errors_of_exempt_hosts_name_no_proxy() -> None:
    environ = {**os.environ, "http_proxy": "http://127.0.0.1:9", "no_proxy": "example.org, .invalid"}
    command = [sys.executable, "-c", CALL, "server.invalid:50051"]
    printed = subprocess.run(command, env=environ, check=True, text=True, capture_output=True).stdout
    assert printed.startswith("no server answers at server.invalid:50051: ")


def test_the_server_answers_the_stubs(server: Server) -> None:
    from anabranch.v1.trajectory_service_pb2 import ListTrajectoriesRequest

    stubs = anabranch.connect(server.address).connection.stubs
    assert len(stubs.trajectories.ListTrajectories(ListTrajectoriesRequest()).trajectories) >= 0


STYLED = ["--config", "pyproject.toml", ".", "../../bench/python", "../../examples/python", "../../pip", "../../proto"]
CHECKS = [
    ["pyright", "--pythonpath", sys.executable],
    ["ruff", "check", *STYLED],
    ["ruff", "format", "--check", *STYLED],
]


def digest_of_what_is_checked() -> str:
    """Returns a digest of the checks, of the files that they read, and of all packages that are installed."""
    folders = [
        ROOT / name for name in ("clients/python", "gen/python", "bench/python", "examples/python", "pip", "proto")
    ]
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".pyi", ".toml")]
    packages = sorted(f"{each.name}=={each.version}" for each in distributions())
    digest = hashlib.sha256(json.dumps([sys.version, CHECKS, packages]).encode())
    for path in sorted([*files, ROOT / ".gitignore"]):
        digest.update(json.dumps([str(path.relative_to(ROOT)), hashlib.sha256(path.read_bytes()).hexdigest()]).encode())
    return digest.hexdigest()[:12]


def test_the_package_has_types_and_one_style() -> None:
    """What has passed with the same inputs is not checked again, unless TEST_DOSE=large."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "anabranch"
    passed = cache / f"checked-python-{digest_of_what_is_checked()}"
    if passed.exists() and not IS_LARGE_DOSE:
        return
    for command in CHECKS:
        folder = ROOT / "clients/python"
        done = subprocess.run([sys.executable, "-m", *command], check=False, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
    cache.mkdir(parents=True, exist_ok=True)
    passed.touch()
