"""Each reason of error.proto is raised as its class, from the details of a gRPC error."""

from __future__ import annotations

import pickle
import uuid
from typing import NamedTuple

import grpc
import pytest
from conftest import ROOT, Server, free_port
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from anabranch import errors
from anabranch._wire.connection import open_stubs
from anabranch._wire.failures import error_from_rpc, raising_reasons
from anabranch.v1.error_pb2 import ErrorReason
from anabranch.v1.trajectory_service_pb2 import GetTrajectoryRequest

REASONS = [name.removeprefix("ERROR_REASON_") for name, number in ErrorReason.items() if number]


class Entry(NamedTuple):
    key: str
    value: str | bytes


class FakeError(grpc.RpcError, grpc.Call):
    """A gRPC error with the details of the server."""

    def __init__(self, *details: object, code: grpc.StatusCode = grpc.StatusCode.ABORTED) -> None:
        packed = [Any() for _ in details]
        for any_detail, detail in zip(packed, details, strict=True):
            any_detail.Pack(detail)
        self._trailer = Status(details=packed).SerializeToString()
        self._code = code

    def code(self):
        return self._code

    def details(self):
        return "what happened"

    def trailing_metadata(self):
        return (Entry("grpc-status-details-bin", self._trailer), Entry("other", "text"))

    initial_metadata = is_active = time_remaining = cancel = add_callback = None


@pytest.mark.parametrize("reason", REASONS)
def test_each_reason_has_its_class(reason: str) -> None:
    info = ErrorInfo(domain="anabranch.v1", reason=reason, metadata={"step_number": "7"})
    error = error_from_rpc(FakeError(info, RetryInfo(retry_delay=Duration(seconds=1, nanos=500_000_000))))
    assert type(error).__name__ == "".join(word.capitalize() for word in reason.split("_"))
    assert type(error) is getattr(errors, type(error).__name__)
    assert (str(error), error.reason, error.metadata, error.retry_after) == (
        "what happened",
        reason,
        {"step_number": "7"},
        1.5,
    )


def test_the_generated_classes_are_those_of_the_proto() -> None:
    import importlib.util

    spec = importlib.util.spec_from_file_location("generate_errors", ROOT / "clients/python/generate_errors.py")
    assert spec and spec.loader
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    assert generator.TARGET.read_text() == generator.generate(), "run `npm run generate`"


def test_reasons_of_a_newer_server_are_the_base_class() -> None:
    error = error_from_rpc(FakeError(ErrorInfo(domain="anabranch.v1", reason="NEW_REASON")))
    assert type(error) is errors.AnabranchError
    assert (error.reason, error.metadata, error.retry_after) == ("NEW_REASON", {}, None)


def test_errors_without_details_have_no_reason() -> None:
    assert error_from_rpc(FakeError()).reason == ""
    assert isinstance(error_from_rpc(FakeError(code=grpc.StatusCode.UNAVAILABLE)), errors.Unreachable)


def test_errors_can_be_pickled() -> None:
    gap = errors.StepGap("gap", reason="STEP_GAP", metadata={"step_number": "7"}, retry_after=1.5)
    diverged = errors.Diverged(3, "arm[0]", 1, 2)
    for error in (gap, diverged):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), copy.__dict__) == (type(error), str(error), error.__dict__)


def test_the_grpc_error_is_the_cause(server: Server) -> None:
    unknown = str(uuid.uuid4())
    with pytest.raises(errors.TrajectoryNotFound) as raised, raising_reasons():
        open_stubs(server.address).trajectories.GetTrajectory(GetTrajectoryRequest(trajectory_id=unknown), timeout=20)
    assert raised.value.metadata == {"trajectory_id": unknown}
    assert isinstance(raised.value.__cause__, grpc.RpcError)


def test_a_server_that_is_not_there_is_unreachable() -> None:
    with pytest.raises(errors.Unreachable), raising_reasons():
        stubs = open_stubs(f"127.0.0.1:{free_port()}")
        stubs.trajectories.GetTrajectory(GetTrajectoryRequest(trajectory_id=str(uuid.uuid4())), timeout=20)
