"""The calls of the recorder: everything that knows RPCs by name. Requests and frames are bytes.

Steps go over AppendSteps, whose first frame also creates the trajectory.
"""

from __future__ import annotations

import struct
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING

from anabranch._recording.digest import step_digest
from anabranch._recording.segment import Kind
from anabranch._wire.connection import Stubs, open_stubs
from anabranch._wire.errors import IncompatibleVersion, NoLocalServer
from anabranch._wire.failures import Failure, failure_of
from anabranch._wire.limits import limits_of
from anabranch._wire.local import found
from anabranch.v1.limits import LIMITS
from anabranch.v1.server_service_pb2 import GetServerInfoResponse
from anabranch.v1.state_service_pb2 import PutStateRequest
from anabranch.v1.trajectory_pb2 import Step
from anabranch.v1.trajectory_service_pb2 import (
    AppendEntry,
    AppendOpen,
    AppendStepsRequest,
    AppendStepsResponse,
    BranchTrajectoryRequest,
    CreateTrajectoryRequest,
    GetStepRequest,
    GetStepResponse,
    Seal,
    SealTrajectoryRequest,
    SetTagRequest,
    UpdateTrajectoryRequest,
)

if TYPE_CHECKING:
    import grpc

    from anabranch.v1.trajectory_service_pb2 import TrajectoryCreation

#: Names of the gRPC codes that errors of entries have.

CREATE = "TrajectoryService/CreateTrajectory"
BRANCH = "TrajectoryService/BranchTrajectory"
_SEAL = "TrajectoryService/SealTrajectory"
_SET_TAG = "TrajectoryService/SetTag"
GET_STEP = "TrajectoryService/GetStep"
UPDATE = "TrajectoryService/UpdateTrajectory"
APPEND_BATCH = "TrajectoryService/AppendBatch"
_APPEND_STEPS = "TrajectoryService/AppendSteps"
_PUT_STATE = "StateService/PutState"
_GET_SERVER_INFO = "ServerService/GetServerInfo"

#: Streams of a connection that are left for unary calls.
_STREAMS_FOR_CALLS = 10
_CALL_SECONDS = 30.0
_UPLOAD_SECONDS = 300.0
#: Precedes the tags in the record of a tagged step.
_TAGS_LENGTH = struct.Struct("<I")

#: The result of a call, or what failed.
Done = Callable[["bytes | Failure"], None]


class Connections:
    """The connections of a sender, each with a few streams less than the server accepts."""

    def __init__(self, address: str) -> None:
        self.limits = limits_of(address)
        self._address = address
        self._stubs: list[Stubs] = []
        self._streams: list[int] = []

    @property
    def exiting(self) -> bool:
        """Whether the interpreter exits and starts no threads any more: then calls block, and streams cannot open.

        To be asked when the channel exists, because loading grpc takes time. A call whose thread could not start would
        never end, and closing its channel would wait for it.
        """
        return sys.version_info >= (3, 12) and not threading.main_thread().is_alive()

    def ask(self, done: Callable[[Failure | None], None]) -> None:
        """Asks the server for its version and limits. `done` gets None if they are known and compatible."""

        def take(answer: bytes | Failure) -> None:
            done(answer if isinstance(answer, Failure) else self._take_info(answer))

        self.call(_GET_SERVER_INFO, b"", take)

    def _take_info(self, response: bytes) -> Failure | None:
        try:
            self.limits.take(GetServerInfoResponse.FromString(response))
        except IncompatibleVersion as error:
            return Failure("FAILED_PRECONDITION", str(error), error.reason, error.metadata)
        return None

    def call(self, method: str, request: bytes, done: Done) -> None:
        """Starts a unary call. `done` is called by a thread of gRPC."""
        try:
            channel = self._channel(0)
        except NoLocalServer as error:
            done(Failure("UNAVAILABLE", str(error), cause=error))
            return
        calling: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(_path(method), None, None)
        if self.exiting:
            done(_answer(lambda: calling(request, timeout=_CALL_SECONDS)))
            return
        future = calling.future(request, timeout=_CALL_SECONDS)
        future.add_done_callback(lambda ended: done(_answer(ended.result)))

    def put_state(self, data: bytes, done: Done) -> None:
        """Starts the upload of a state."""
        try:
            channel = self._channel(0)
        except NoLocalServer as error:
            done(Failure("UNAVAILABLE", str(error), cause=error))
            return
        calling: grpc.StreamUnaryMultiCallable[bytes, bytes]
        calling = channel.stream_unary(_path(_PUT_STATE), None, None)
        if self.exiting:
            done(Failure("CANCELLED", "the interpreter exits", "CANCELLED"))
            return
        future = calling.future(_chunks(data, self.limits["chunkBytes"]), timeout=_UPLOAD_SECONDS)
        future.add_done_callback(lambda ended: done(_answer(ended.result)))

    def open_stream(self, opening: bytes, report: Callable[[AppendStepsResponse | Failure | None], None]) -> Stream:
        """Opens an append stream. Raises RuntimeError if no thread can start, or no server of a file. `report` gets each response, then None or a failure, from the stream's own thread."""
        most = max(1, self.limits["streamsPerConnection"] - _STREAMS_FOR_CALLS)
        index = next((i for i, count in enumerate(self._streams) if count < most), len(self._streams))
        try:
            channel = self._channel(index)
        except NoLocalServer as error:
            raise RuntimeError(str(error)) from error
        if self.exiting:
            raise RuntimeError("the interpreter exits")
        self._streams[index] += 1
        try:
            return Stream(channel, opening, report, index)
        except BaseException:
            self._streams[index] -= 1
            raise

    def release(self, stream: Stream) -> None:
        """Counts a stream as ended."""
        self._streams[stream.index] -= 1

    def close(self) -> None:
        """Closes the connections. The next call opens another one."""
        for stubs in self._stubs:
            stubs.channel.close()
        self._stubs.clear()

    def _channel(self, index: int) -> grpc.Channel:
        place = found(self._address)
        while len(self._stubs) <= index:
            self._stubs.append(open_stubs(self._address, place))
        if self._stubs[index].place != place:
            self._stubs[index] = open_stubs(self._address, place)
        self._streams += [0] * (len(self._stubs) - len(self._streams))
        return self._stubs[index].channel


class Stream:
    """One AppendSteps stream. A thread reads its responses; the sender writes its frames."""

    def __init__(
        self,
        channel: grpc.Channel,
        opening: bytes,
        report: Callable[[AppendStepsResponse | Failure | None], None],
        index: int,
    ) -> None:
        #: Number of its channel.
        self.index = index
        self._frames: SimpleQueue[bytes | None] = SimpleQueue()
        self._frames.put(opening)
        calling: grpc.StreamStreamMultiCallable[bytes, AppendStepsResponse]
        calling = channel.stream_stream(_path(_APPEND_STEPS), None, AppendStepsResponse.FromString)
        frames: Iterator[bytes] = iter(self._frames.get, None)
        self._call = calling(frames)
        try:
            threading.Thread(target=self._read, args=(report,), name="anabranch-acks", daemon=True).start()
        except BaseException:
            self._frames.put(None)
            self._call.cancel()
            raise

    def send(self, frame: bytes) -> None:
        self._frames.put(frame)

    def finish(self) -> None:
        """Ends the stream after the frames that were sent."""
        self._frames.put(None)

    def cancel(self) -> None:
        self._frames.put(None)
        self._call.cancel()

    def _read(self, report: Callable[[AppendStepsResponse | Failure | None], None]) -> None:
        import grpc

        try:
            for response in self._call:
                report(response)
        except grpc.RpcError as error:
            self._frames.put(None)
            report(failure_of(error))
        else:
            self._frames.put(None)
            report(None)


def opening_of(to: Addressee, writer_id: str, create: bytes | None) -> bytes:
    """Returns the first frame of a stream. `create` is the content of the record that creates the trajectory."""
    opening = AppendOpen(trajectory_id=to.trajectory_id, uid=to.uid, writer_id=writer_id, take_over_epoch=to.epoch)
    if create is not None:
        _set_creation(opening.create, create)
    return AppendStepsRequest(open=opening).SerializeToString()


def frame_of(contents: Sequence[tuple[Kind, bytes]]) -> bytes:
    """Returns a frame with steps and their tags. Steps are field 2 of AppendStepsRequest, once for each."""
    parts: list[bytes] = []
    for kind, content in contents:
        tags, step = (b"", content) if kind == Kind.STEP else _split(content)
        parts += (b"\x12", varint(len(step)), step, tags)
    return b"".join(parts)


def tagged_step(step: bytes, number: int, names: Iterable[str]) -> bytes:
    """Returns the content of a tagged step's record: the tags as a part of AppendStepsRequest, and the step."""
    request = AppendStepsRequest()
    for name in names:
        request.tags.add(name=name, step_number=number)
    tags = request.SerializeToString()
    return _TAGS_LENGTH.pack(len(tags)) + tags + step


def step_of(kind: Kind, content: bytes) -> bytes:
    """Returns the step of a record, without its tags."""
    return _split(content)[1] if kind == Kind.TAGGED_STEP else content


def tags_of(content: bytes) -> bytes:
    """Returns the tags of a tagged step's record, as a part of AppendStepsRequest."""
    return _split(content)[0]


def _split(content: bytes) -> tuple[bytes, bytes]:
    start = _TAGS_LENGTH.size
    end = start + _TAGS_LENGTH.unpack_from(content)[0]
    return content[start:end], content[end:]


@dataclass(frozen=True)
class Addressee:
    """The trajectory that a record goes to."""

    trajectory_id: str
    uid: str
    epoch: int | None


def entry_of(to: Addressee, writer_id: str | None, contents: Sequence[tuple[Kind, bytes]]) -> bytes:
    """Returns an entry of AppendBatch: a creation, steps and a seal. With `writer_id`, the entry is granted an epoch."""
    entry = AppendEntry(trajectory_id=to.trajectory_id, uid=to.uid)
    if writer_id is None:
        entry.writer_epoch = to.epoch or 0
    else:
        entry.writer_id = writer_id
        if to.epoch is not None:
            entry.take_over_epoch = to.epoch
    parts: list[bytes] = []
    for kind, content in contents:
        if kind == Kind.CREATE:
            _set_creation(entry.create, content)
        elif kind == Kind.SEAL:
            entry.seal.ParseFromString(content)
        else:
            tags, step = (b"", content) if kind == Kind.STEP else _split(content)
            if tags:
                entry.tags.extend(AppendStepsRequest.FromString(tags).tags)
            # Field 7 of AppendEntry.
            parts += (b"\x3a", varint(len(step)), step)
    return entry.SerializeToString() + b"".join(parts)


def batch_of(entries: Sequence[bytes]) -> bytes:
    """Returns a request of AppendBatch: field 1, once for each entry."""
    parts: list[bytes] = []
    for entry in entries:
        parts += (b"\x0a", varint(len(entry)), entry)
    return b"".join(parts)


def _set_creation(creation: TrajectoryCreation, content: bytes) -> None:
    method, _, request = content.partition(b"\0")
    (creation.branch if method.decode() == BRANCH else creation.trajectory).ParseFromString(request)


def call_of(kind: Kind, content: bytes, to: Addressee) -> tuple[str, bytes]:
    """Returns the method and the request of a record that is not sent on a stream."""
    if kind == Kind.SEAL:
        seal = SealTrajectoryRequest(trajectory_id=to.trajectory_id, uid=to.uid, writer_epoch=to.epoch)
        seal.seal.ParseFromString(content)
        return _SEAL, seal.SerializeToString()
    if kind == Kind.TAG:
        # The steps may be in another trajectory than when the tag was recorded.
        tag = SetTagRequest.FromString(content)
        tag.trajectory_id = to.trajectory_id
        return _SET_TAG, tag.SerializeToString()
    method, _, request = content.partition(b"\0")
    return method.decode(), request


def sealing(status: int, message: str) -> bytes:
    """Returns the content of a seal's record."""
    seal = Seal(message=message)
    seal.status = status  # pyright: ignore[reportAttributeAccessIssue]
    return seal.SerializeToString()


def tagging(name: str, number: int) -> bytes:
    """Returns the content of a tag's record."""
    return SetTagRequest(name=name, step_number=number).SerializeToString()


def labels_of(trajectory_id: str, labels: Mapping[str, str]) -> bytes:
    """Returns the request that sets the labels of a trajectory."""
    request = UpdateTrajectoryRequest(trajectory_id=trajectory_id, labels=labels)
    request.update_mask.paths.append("labels")
    return request.SerializeToString()


def get_step_of(trajectory_id: str, number: int) -> bytes:
    return GetStepRequest(trajectory_id=trajectory_id, step_number=number).SerializeToString()


def rest_of(source: str, shared: int, branch_id: str, name: str) -> tuple[str, bytes]:
    """Returns the call that creates the trajectory for steps that `source` could not take.

    It shares the first `shared` steps of the source.
    """
    labels = {"anabranch.spooled_from": source}
    if shared == 0:
        create = CreateTrajectoryRequest(trajectory_id=branch_id, request_id=branch_id, name=name, labels=labels)
        return CREATE, create.SerializeToString()
    branch = BranchTrajectoryRequest(trajectory_id=source, step_number=shared - 1, branch_id=branch_id)
    branch.request_id, branch.name = branch_id, name
    branch.labels.update(labels)
    return BRANCH, branch.SerializeToString()


def marker_of(step: Step, problem: str) -> Step:
    """Returns what takes the place of a step: its reward and its flags, which no server rejects, and the problem as info."""
    import json

    marker = Step(step_number=step.step_number, terminated=step.terminated, truncated=step.truncated)
    marker.info_json = json.dumps({"unstored": problem[:4000]})
    if step.HasField("reward"):
        marker.reward = step.reward
    return marker


def remedies_of(kind: Kind, content: bytes, problem: str) -> Iterator[bytes]:
    """Yields what can take the place of a rejected step: the step without tags, a marker with its tokens, a marker.

    Later steps refer to the tokens.
    """
    if kind == Kind.TAGGED_STEP:
        yield step_of(kind, content)
    step = Step.FromString(step_of(kind, content))
    marker = marker_of(step, problem)
    for tokens in step.actions[:1]:
        for field in ("type", "name", "call_id", "content"):
            tokens.ClearField(field)
        if len(tokens.logprobs) != len(tokens.token_ids):
            tokens.ClearField("logprobs")
        if tokens.ByteSize() > 0:
            with_tokens = Step(actions=[tokens])
            with_tokens.MergeFrom(marker)
            yield with_tokens.SerializeToString()
    yield marker.SerializeToString()


def is_stored(step: bytes, response: bytes, moved_bytes: int = LIMITS["contentStateBytes"]) -> bool:
    """Returns whether a response of GetStep has the same step (rule W6)."""
    ours, stored = Step.FromString(step), GetStepResponse.FromString(response).step
    # States that were attached later are no part of what a client sent.
    names = {state.name or "env" for state in ours.states}
    for state in [each for each in stored.states if each.HasField("attach_time") and each.name not in names]:
        stored.states.remove(state)
    return step_digest(ours, moved_bytes) == step_digest(stored, moved_bytes)


def _path(method: str) -> str:
    return f"/anabranch.v1.{method}"


def _answer(wait: Callable[[], bytes]) -> bytes | Failure:
    import grpc

    try:
        return wait()
    except grpc.RpcError as error:
        return failure_of(error)
    except grpc.FutureCancelledError:
        return Failure("CANCELLED", "the call was cancelled")


def _chunks(data: bytes, size: int) -> Iterator[bytes]:
    for offset in range(0, max(len(data), 1), size):
        yield PutStateRequest(chunk=data[offset : offset + size]).SerializeToString()


def varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
