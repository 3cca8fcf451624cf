"""A Python program with generated stubs: writes, is cut off, resumes, branches, reads across the branch points.

    python story.py write ADDRESS                        writes, and prints the ids as JSON
    python story.py read ADDRESS TRAJECTORY BRANCH LEAF  reads what any client wrote, and compares it with the samples
"""

import json
import queue
import sys
import uuid

import grpc
from anabranch.v1.state_service_pb2 import (
    GetStateRequest,
    PutStateRequest,
    ReadStatesRequest,
    StateRange,
    StateReference,
)
from anabranch.v1.state_service_pb2_grpc import StateServiceStub
from anabranch.v1.status_pb2 import STATUS_COMPLETED, STATUS_RUNNING
from anabranch.v1.trajectory_pb2 import Step
from anabranch.v1.trajectory_service_pb2 import (
    AppendOpen,
    AppendStepRequest,
    AppendStepsRequest,
    BranchTrajectoryRequest,
    CreateTrajectoryRequest,
    GetCheckpointRequest,
    GetStepRequest,
    GetTrajectoryRequest,
    ReadStepsRequest,
    Seal,
    SealTrajectoryRequest,
)
from anabranch.v1.trajectory_service_pb2_grpc import TrajectoryServiceStub
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status as RpcStatus
from samples import (
    DESCRIPTION,
    INLINE_STATE,
    PUT_STATE,
    as_read,
    branch_steps,
    leaf_steps,
    sample_steps,
    sha256,
    without_server_fields,
)

DEADLINE = 20
BEYOND_DOUBLE = 2**53 + 1


def equal(actual, expected) -> None:
    if actual != expected:
        raise AssertionError(f"expected {expected!r:.2000}\nbut got  {actual!r:.2000}")


def error_info(error: grpc.RpcError) -> ErrorInfo:
    details = dict(error.trailing_metadata())["grpc-status-details-bin"]
    info = ErrorInfo()
    packed = [any for any in RpcStatus.FromString(details).details if any.Unpack(info)]
    equal(len(packed), 1)
    equal(info.domain, "anabranch.v1")
    return info


def refused(code: grpc.StatusCode, reason: str, call) -> dict[str, str]:
    """Makes a call, expects a refusal with that reason, and returns its structured details."""
    try:
        call()
    except grpc.RpcError as error:
        equal(error.code(), code)
        info = error_info(error)
        equal(info.reason, reason)
        return dict(info.metadata)
    raise AssertionError(f"expected {reason}, but the call succeeded")


class Append:
    """One AppendSteps call."""

    def __init__(self, trajectories: TrajectoryServiceStub, **open_fields):
        self._frames: queue.SimpleQueue = queue.SimpleQueue()
        self._frames.put(AppendStepsRequest(open=AppendOpen(**open_fields)))
        self._call = trajectories.AppendSteps(iter(self._frames.get, None), timeout=DEADLINE)
        self.opened = next(self._call).opened

    def send(self, steps: list[Step]) -> None:
        self._frames.put(AppendStepsRequest(steps=steps))

    def append(self, steps: list[Step]):
        self.send(steps)
        end = steps[-1].step_number + 1
        return next(answer.ack for answer in self._call if answer.ack.next_step_number >= end)

    def refusal(self) -> None:
        next(self._call)

    def close(self) -> None:
        self._frames.put(None)
        equal([answer for answer in self._call if not answer.HasField("ack")], [])

    def stop_sending(self) -> None:
        self._frames.put(None)


class Story:
    def __init__(self, address: str, channel: grpc.Channel):
        self.address = address
        self.trajectories = TrajectoryServiceStub(channel)
        self.states = StateServiceStub(channel)

    def write(self) -> dict[str, str]:
        equal(self.put_state(PUT_STATE), sha256(PUT_STATE))
        trajectory_id = self.append_and_resume()
        self.is_refused(trajectory_id)
        self.large_refusals_arrive()
        return {"trajectoryId": trajectory_id, **self.branch_twice(trajectory_id)}

    def large_refusals_arrive(self) -> None:
        request = CreateTrajectoryRequest(labels={f"{i}{'€' * 100}": "v" * 257 for i in range(10)})
        # A client that rejects headers by their size does so in some of the calls only.
        for _ in range(20):
            told = refused(
                grpc.StatusCode.INVALID_ARGUMENT,
                "INVALID_REQUEST",
                lambda: self.trajectories.CreateTrajectory(request),
            )
            equal(1 <= int(told["violations_left_out"]) <= 19, True)

    def put_state(self, data: bytes) -> str:
        chunks = [PutStateRequest(chunk=data[i : i + 262144]) for i in range(0, len(data), 262144)]
        return self.states.PutState(iter([PutStateRequest(digest=sha256(data)), *chunks])).state.digest

    def append_and_resume(self) -> str:
        steps = sample_steps()
        request = CreateTrajectoryRequest(request_id=str(uuid.uuid4()), root=steps[0], **DESCRIPTION)
        trajectory_id = self.trajectories.CreateTrajectory(request).trajectory.id
        equal(self.trajectories.CreateTrajectory(request).trajectory.id, trajectory_id)

        doomed = grpc.insecure_channel(self.address)
        first = Append(TrajectoryServiceStub(doomed), trajectory_id=trajectory_id, writer_id="python one")
        equal((first.opened.epoch, first.opened.next_step_number), (1, 1))
        equal(first.append(steps[1:3]).next_step_number, 3)
        for step in steps[3:5]:
            first.send([step])
        doomed.close()  # the connection, with steps unacked
        first.stop_sending()

        trajectory = self.trajectories.GetTrajectory(GetTrajectoryRequest(trajectory_id=trajectory_id)).trajectory
        equal((trajectory.writer_id, trajectory.writer_epoch), ("python one", 1))
        holder = refused(
            grpc.StatusCode.FAILED_PRECONDITION,
            "WRITER_FENCED",
            lambda: Append(self.trajectories, trajectory_id=trajectory_id, writer_id="python two"),
        )
        equal(holder, {"writer_id": "python one", "writer_epoch": "1"})
        second = Append(
            self.trajectories,
            trajectory_id=trajectory_id,
            uid=trajectory.uid,
            writer_id="python two",
            take_over_epoch=trajectory.writer_epoch,
        )
        equal(second.opened.epoch, 2)
        ack = second.append(steps[3:])
        equal((ack.next_step_number, ack.duplicate_steps), (7, second.opened.next_step_number - 3))
        second.close()
        return trajectory_id

    def is_refused(self, trajectory_id: str) -> None:
        step = Step(step_number=7)
        request = AppendStepRequest(trajectory_id=trajectory_id, writer_epoch=1, step=step)
        late = refused(grpc.StatusCode.FAILED_PRECONDITION, "WRITER_FENCED", lambda: self.trajectories.AppendStep(request))
        equal(late, {"writer_id": "python two", "writer_epoch": "2"})

        other = Append(self.trajectories, trajectory_id=trajectory_id, writer_id="python two")
        other.send([Step(step_number=BEYOND_DOUBLE)])
        gap = refused(grpc.StatusCode.OUT_OF_RANGE, "STEP_GAP", other.refusal)
        equal((gap["step_number"], gap["next_step_number"]), (str(BEYOND_DOUBLE), "7"))

        missing = GetStepRequest(trajectory_id=trajectory_id, step_number=BEYOND_DOUBLE)
        told = refused(grpc.StatusCode.NOT_FOUND, "STEP_NOT_FOUND", lambda: self.trajectories.GetStep(missing))
        equal(told["step_number"], str(BEYOND_DOUBLE))

    def branch_twice(self, trajectory_id: str) -> dict[str, str]:
        request = BranchTrajectoryRequest(trajectory_id=trajectory_id, step_number=3, name="branch")
        branch = self.trajectories.BranchTrajectory(request).trajectory
        equal((branch.parent_id, branch.branch_point, branch.next_step_number), (trajectory_id, 3, 4))
        for step in branch_steps():
            self.trajectories.AppendStep(AppendStepRequest(trajectory_id=branch.id, step=step))
        seal = Seal(status=STATUS_COMPLETED, message="done")
        self.trajectories.SealTrajectory(SealTrajectoryRequest(trajectory_id=branch.id, seal=seal))
        request = BranchTrajectoryRequest(trajectory_id=branch.id, step_number=4, name="leaf")
        leaf = self.trajectories.BranchTrajectory(request).trajectory
        for step in leaf_steps():
            self.trajectories.AppendStep(AppendStepRequest(trajectory_id=leaf.id, step=step))
        return {"branchId": branch.id, "leafId": leaf.id}

    def read(self, trajectory_id: str, branch_id: str, leaf_id: str) -> None:
        own = [(trajectory_id, step) for step in sample_steps()]
        on_branch = [(branch_id, step) for step in branch_steps()]
        on_leaf = [(leaf_id, step) for step in leaf_steps()]
        self.expect_steps(trajectory_id, own)
        self.expect_steps(branch_id, own[:4] + on_branch)
        self.expect_steps(leaf_id, own[:4] + on_branch[:1] + on_leaf)
        self.expect_states(trajectory_id, leaf_id)
        trajectory = self.trajectories.GetTrajectory(GetTrajectoryRequest(trajectory_id=trajectory_id)).trajectory
        equal({name: getattr(trajectory, name) for name in DESCRIPTION}, DESCRIPTION)
        equal((trajectory.status, trajectory.next_step_number), (STATUS_RUNNING, 7))
        equal(trajectory.HasField("branch_point"), False)

    def expect_steps(self, trajectory_id: str, expected: list[tuple[str, Step]]) -> None:
        messages = self.trajectories.ReadSteps(ReadStepsRequest(trajectory_id=trajectory_id), timeout=DEADLINE)
        read = [(message.trajectory_id, step) for message in messages for step in message.steps]
        equal([owner for owner, _ in read], [owner for owner, _ in expected])
        for (_, step), (_, sent) in zip(read, expected, strict=True):
            # By bytes: a NaN is not equal to itself, and 0 is equal to -0.
            actual, wanted = without_server_fields(step), as_read(sent)
            if actual.SerializeToString(deterministic=True) != wanted.SerializeToString(deterministic=True):
                raise AssertionError(f"expected {wanted!s:.2000}\nbut got  {actual!s:.2000}")

    def expect_states(self, trajectory_id: str, leaf_id: str) -> None:
        request = GetCheckpointRequest(trajectory_id=trajectory_id, at_or_before=5)
        checkpoint = self.trajectories.GetCheckpoint(request).step
        states = checkpoint.states
        equal([(state.name, state.HasField("data"), state.size) for state in states], [
            ("env", True, 0),
            ("memory", True, len(INLINE_STATE)),
            ("put", False, len(PUT_STATE)),
        ])
        equal(sha256(states[1].data), sha256(INLINE_STATE))
        digest = states[2].digest
        chunks = self.states.GetState(GetStateRequest(digest=digest))
        equal(sha256(b"".join(message.chunk for message in chunks)), sha256(PUT_STATE))
        reference = StateReference(trajectory_id=trajectory_id, step_number=checkpoint.step_number, name="put")
        chunks = self.states.GetState(GetStateRequest(reference=reference, offset=300_001, length=300_000))
        equal(sha256(b"".join(message.chunk for message in chunks)), sha256(PUT_STATE[300_001:600_001]))
        sequence = self.states.ReadStates(ReadStatesRequest(range=StateRange(trajectory_id=leaf_id)))
        pieces = [(piece.step_number, piece.data.decode()) for message in sequence for piece in message.pieces]
        equal(pieces, [(1, "état 1"), (4, "branch 4"), (5, "leaf 5")])


def main(command: str, address: str, *ids: str) -> None:
    with grpc.insecure_channel(address) as channel:
        story = Story(address, channel)
        if command == "write":
            print(json.dumps(story.write()))
        else:
            story.read(*ids)


main(*sys.argv[1:])
