"""A server in front of the real one, for tests of what calls are made and of servers of other versions."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from conftest import Server

from anabranch._wire.access import NAMESPACE_HEADER
from anabranch._wire.connection import open_stubs
from anabranch._wire.limits import _known
from anabranch.v1.server_service_pb2 import GetServerInfoRequest, GetServerInfoResponse


class Front(grpc.GenericRpcHandler):
    """A server that passes calls to the real one, and answers GetServerInfo by itself."""

    def __init__(self, server: Server, info: GetServerInfoResponse | None = None) -> None:
        #: What GetServerInfo answers.
        self.info = info or info_of(server)
        self.asked = 0
        #: Methods of the calls, GetServerInfo aside.
        self.methods: list[str] = []
        #: Sizes of the messages of PutState.
        self.chunks: list[int] = []
        self._channel = open_stubs(server.address).channel
        self._server = grpc.server(ThreadPoolExecutor(16), handlers=(self,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        # Ports are used again: this process may know another server, or another version, by the address.
        _known.pop(self.address, None)
        self._server.start()

    def stop(self) -> None:
        self._server.stop(0).wait()
        self._channel.close()
        _known.pop(self.address, None)

    def service(self, handler_call_details: Any) -> Any:
        method: str = handler_call_details.method
        if method.endswith("/GetServerInfo"):
            return grpc.unary_unary_rpc_method_handler(self._info)
        self.methods.append(method.rpartition("/")[2])
        forward = self._channel.stream_stream(method, None, None)

        def seen(requests: Iterator[bytes]) -> Iterator[bytes]:
            for request in requests:
                if method.endswith("/PutState"):
                    self.chunks.append(len(request))
                yield request

        def answered(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            sent: Any = context.invocation_metadata()
            # Others are of the connection.
            own = [(name, value) for name, value in sent if name == NAMESPACE_HEADER]
            call: Any = forward(seen(requests), metadata=own)
            try:
                yield from call
            except grpc.RpcError:
                context.set_trailing_metadata(call.trailing_metadata() or ())
                context.abort(call.code(), call.details())

        return grpc.stream_stream_rpc_method_handler(answered)

    def _info(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.asked += 1
        return self.info.SerializeToString()


def info_of(server: Server, **fields: Any) -> GetServerInfoResponse:
    """Returns what the server says about itself, with other values of some fields."""
    info = server.stubs().server.GetServerInfo(GetServerInfoRequest(), timeout=60)
    for name, value in fields.items():
        info.ClearField(name)
        info.MergeFrom(GetServerInfoResponse(**{name: value}))
    return info
