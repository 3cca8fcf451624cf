"""A channel whose calls say who makes them. Loads grpc."""

from __future__ import annotations

from typing import Any

import grpc

from anabranch._wire.access import NAMESPACE_HEADER, Access
from anabranch._wire.tracing import trace_context


def identified(channel: grpc.Channel, access: Access, namespace: str) -> grpc.Channel:
    """Returns the channel whose calls have the token and the namespace, and continue the active trace."""
    return grpc.intercept_channel(channel, _Headers(access, namespace))


class _Details(grpc.ClientCallDetails):
    """The details of a call with more metadata."""

    def __init__(self, given: grpc.ClientCallDetails, more: tuple[tuple[str, str], ...]) -> None:
        self.method = given.method
        self.timeout = given.timeout
        self.metadata = (*(given.metadata or ()), *more)
        self.credentials = given.credentials
        self.wait_for_ready = given.wait_for_ready
        self.compression = given.compression


class _Headers(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    def __init__(self, access: Access, namespace: str) -> None:
        self._access = access
        self._namespace = ((NAMESPACE_HEADER, namespace),) if namespace else ()

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return continuation(self._named(client_call_details), request)

    def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return continuation(self._named(client_call_details), request)

    def intercept_stream_unary(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return continuation(self._named(client_call_details), request_iterator)

    def intercept_stream_stream(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return continuation(self._named(client_call_details), request_iterator)

    def _named(self, details: grpc.ClientCallDetails) -> grpc.ClientCallDetails:
        authorization = self._access.authorization()
        who = () if authorization is None else (("authorization", authorization),)
        return _Details(details, (*who, *self._namespace, *trace_context()))
