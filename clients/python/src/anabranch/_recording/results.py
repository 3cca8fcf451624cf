"""Results of tools, as the messages that give them to the model."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from anabranch._recording.messages import cleaned
from anabranch._recording.replies import ANTHROPIC, CHAT, RESPONSES, ToolCall
from anabranch._wire.decode import Unstored, decode_content
from anabranch._wire.kinds import Kind, kind_of
from anabranch._wire.tensors import png_of
from anabranch._wire.values import image_type

if TYPE_CHECKING:
    from anabranch.v1.trajectory_pb2 import Observation


class Text(NamedTuple):
    text: str
    #: The part as the tool returned it. None if this package made it.
    given: dict[str, Any] | None = None


class Image(NamedTuple):
    #: A data URL or another one. Empty if the part names a file of the service.
    url: str
    given: dict[str, Any] | None = None


class Other(NamedTuple):
    """A document, a sound or something else."""

    given: dict[str, Any]


Part: TypeAlias = Text | Image | Other


@dataclass(frozen=True)
class Result:
    """The result of a call, as it is read back."""

    call: ToolCall
    #: An `Image` if it is the file of one.
    value: Any
    is_error: bool

    def content(self) -> str | list[Part]:
        """Returns the text, or the parts if the result has images or is a list of parts."""
        value = self.value
        if isinstance(value, str):
            return value
        parts = _parts_of(value)
        if parts is not None:
            return parts
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        images: list[Image] = []
        text = json.dumps(_as_json(value, images), ensure_ascii=False)
        return [Text(text), *images] if images else text


def result_of(call: ToolCall, item: Observation, fetch: Callable[[str], bytes]) -> Result:
    """Reads the result of a call from the observation that has it."""
    content = item.content
    if content.media_type.startswith("image/") and not content.HasField("uri"):
        data = fetch(content.state_digest) if content.HasField("state_digest") else content.data
        return Result(call, Image(_data_url(content.media_type, data)), item.is_error)
    return Result(call, decode_content(content, fetch), item.is_error)


def is_failure(value: Any) -> bool:
    """Returns whether a tool of MCP reports a failure."""
    return _is_mcp_result(value) and bool(value.get("isError") or value.get("is_error"))


def result_messages(format: str, results: Sequence[Result]) -> list[dict[str, Any]]:
    """Returns the messages that give the model the results of one reply's calls."""
    make = {CHAT: _chat_messages, RESPONSES: _response_items, ANTHROPIC: _anthropic_messages}[format]
    return [cleaned(message) for message in make(results)]


# What a value contains


def _parts_of(value: Any) -> list[Part] | None:
    """Returns the parts of a result that is an image, a list of parts and images, or a result of MCP."""
    if (part := _part_of(value)) is not None:
        return [part]
    if _is_mcp_result(value):
        parts = [_part_of(each) or Other(each) for each in value["content"] if isinstance(each, dict)]
        structured = value.get("structuredContent") or value.get("structured_content")
        return parts or [Text(json.dumps(_as_json(structured, []), ensure_ascii=False) if structured else "")]
    if not isinstance(value, (list, tuple)):
        return None
    items = cast("list[Any]", value)
    found = [Text(each) if isinstance(each, str) else _part_of(each) for each in items]
    are_parts = all(found) and any(not isinstance(each, str) for each in items)
    return [part for part in found if part is not None] if are_parts else None


def _part_of(value: Any) -> Part | None:
    """Returns a part of one of the three formats or of MCP, or an image. None if the value is none."""
    if isinstance(value, Image):
        return value
    if kind_of(value) is Kind.IMAGE:
        return Image(_data_url("image/png", png_of(value)))
    if isinstance(value, bytes) and (media_type := image_type(value)):
        return Image(_data_url(media_type, value))
    if not isinstance(value, dict):
        return None
    part = cast("dict[str, Any]", value)
    kind = part.get("type")
    if kind in ("text", "input_text", "output_text"):
        return Text(part["text"], part) if isinstance(part.get("text"), str) else None
    if kind in _IMAGE_TYPES:
        url = _url_of(part)
        return None if url is None else Image(url, part)
    return Other(part) if isinstance(kind, str) and kind in _OTHERS and _OTHERS[kind] & part.keys() else None


_IMAGE_TYPES = frozenset({"image_url", "input_image", "image"})
#: Types of other parts, and members of which each has at least one.
_OTHERS: dict[str, set[str]] = {
    "audio": {"data"},
    "browser_state": {"type"},
    "document": {"source"},
    "file": {"file"},
    "input_audio": {"input_audio"},
    "input_file": {"file_id", "file_data", "file_url"},
    "resource": {"resource"},
    "resource_link": {"uri"},
    "search_result": {"content"},
    "tool_reference": {"tool_name"},
}
#: Those that a format has itself.
_NATIVE: dict[str, frozenset[str]] = {
    CHAT: frozenset({"file", "input_audio"}),
    RESPONSES: frozenset({"input_file"}),
    ANTHROPIC: frozenset({"browser_state", "document", "search_result", "tool_reference"}),
}


def _url_of(part: Mapping[str, Any]) -> str | None:
    """Returns the URL of an image; empty for a file of the service. None if it is no image."""
    found: Any = part.get("image_url")
    source: Any = part.get("source")
    url: Any = cast("dict[str, Any]", found).get("url") if isinstance(found, dict) else found
    if isinstance(url, str):
        return url
    if isinstance(source, dict):
        named = cast("dict[str, Any]", source)
        if isinstance(named.get("data"), str):
            return f"data:{named.get('media_type')};base64,{named['data']}"
        return str(named.get("url", ""))
    if isinstance(part.get("data"), str):
        return f"data:{part.get('mimeType') or part.get('mime_type')};base64,{part['data']}"
    return "" if part.get("file_id") else None


def _is_mcp_result(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    data = cast("dict[str, Any]", value)
    marks = {"isError", "is_error", "structuredContent", "structured_content"}
    return isinstance(data.get("content"), list) and bool(marks & data.keys())


def _as_json(value: Any, images: list[Image]) -> Any:
    """Returns a value as JSON has it. Images are taken out, and named by their number."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, dict):
        return {str(key): _as_json(member, images) for key, member in cast("dict[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(each, images) for each in cast("list[Any]", value)]
    part = _part_of(value)
    if isinstance(part, Image):
        images.append(part)
        return f"[image {len(images)}]"
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, Unstored):
        return cleaned(value)
    return _as_json(value.tolist(), images) if hasattr(value, "tolist") else str(value)


def _data_url(media_type: str, data: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode('ascii')}"


# The three formats


def _chat_messages(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Messages of tools have text only: images follow in a message of the user, after all results."""
    messages: list[dict[str, Any]] = []
    apart: list[dict[str, Any]] = []
    for result in results:
        content = result.content()
        texts: list[dict[str, Any]] = []
        for part in () if isinstance(content, str) else content:
            native = _native(CHAT, part)
            if native["type"] != "text":
                name = "image" if isinstance(part, Image) else native["type"]
                label = {"type": "text", "text": f"[{name} {len(apart) // 2 + 1} of the tool results]"}
                apart += [label, native]
                native = label
            texts.append(native)
        if result.call.kind == "function_call":
            text = content if isinstance(content, str) else "\n".join(part["text"] for part in texts)
            messages.append({"role": "function", "name": result.call.name, "content": text})
        else:
            answer = content if isinstance(content, str) else texts
            messages.append({"role": "tool", "tool_call_id": result.call.id, "content": answer})
    return [*messages, {"role": "user", "content": apart}] if apart else messages


def _anthropic_messages(results: Sequence[Result]) -> list[dict[str, Any]]:
    """The service demands the results of one reply in one message."""
    blocks: list[dict[str, Any]] = []
    for result in results:
        content = result.content()
        if not isinstance(content, str):
            # It refuses empty text.
            content = [_native(ANTHROPIC, part) for part in content if part != Text("", part.given)] or ""
        block = {"type": "tool_result", "tool_use_id": result.call.id, "content": content}
        blocks.append({**block, "is_error": True} if result.is_error else block)
    return [{"role": "user", "content": blocks}] if blocks else []


def _response_items(results: Sequence[Result]) -> list[dict[str, Any]]:
    """What the output of a call cannot have precedes it as a message of the user."""
    items: list[dict[str, Any]] = []
    for result in results:
        item, left_out = _output_of(result)
        parts = [_native(RESPONSES, part, needs_detail=True) for part in left_out if part != Text("")]
        if parts:
            label = {"type": "input_text", "text": f"Of the result of {result.call.name}:"}
            items.append({"type": "message", "role": "user", "content": [label, *parts]})
        items.append(item)
    return items


def _output_of(result: Result) -> tuple[dict[str, Any], Sequence[Part]]:
    """Returns the item that answers a call, and the parts of the result that it cannot have."""
    call, value = result.call, result.value
    given: object = call.raw
    raw = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    if call.kind == "mcp_approval_request":
        return {"type": "mcp_approval_response", "approval_request_id": call.id, **_approval(result)}, ()
    kind = _OUTPUTS.get(call.kind, f"{call.kind}_output")
    if isinstance(value, dict) and cast("dict[str, Any]", value).get("type") == kind:
        # The tool has made the item itself.
        return {"call_id": call.id, **cast("dict[str, Any]", value)}, ()
    item: dict[str, Any] = {"type": kind, "call_id": call.id}
    if raw.get("caller") is not None:
        item["caller"] = raw["caller"]
    content = result.content()
    parts: Sequence[Part] = [Text(content)] if isinstance(content, str) else content
    text = "\n".join(part.text for part in parts if isinstance(part, Text))
    others = [part for part in parts if not isinstance(part, Text)]
    if call.kind == "computer_call":
        screen = next((part for part in parts if isinstance(part, Image) and part.url), Image(_BLANK))
        item["output"] = {"type": "computer_screenshot", "image_url": screen.url}
        return item, [part for part in parts if part is not screen]
    if call.kind == "local_shell_call":
        # The service reads `call_id`, and its types demand `id`.
        return {**item, "id": call.id, "output": text}, others
    if call.kind == "apply_patch_call":
        return {**item, "status": "failed" if result.is_error else "completed", "output": text}, others
    if call.kind == "shell_call":
        action: Any = raw.get("action")
        if isinstance(action, dict) and isinstance(
            length := cast("dict[str, Any]", action).get("max_output_length"), int
        ):
            item["max_output_length"] = length
        chunks = _shell_chunks(value)
        if chunks:
            return {**item, "output": chunks}, ()
        out, err = ("", text) if result.is_error else (text, "")
        return {
            **item,
            "output": [_shell_chunk({"stdout": out, "stderr": err, "exit_code": int(result.is_error)})],
        }, others
    if call.kind == "tool_search_call":
        tools = cast("list[Any]", value) if isinstance(value, list) and isinstance(content, str) else []
        tools = (
            tools if all(isinstance(tool, dict) and {"name", "server_label"} & tool.keys() for tool in tools) else []
        )
        return {**item, "execution": "client", "status": "completed", "tools": tools}, () if tools else parts
    needs_detail = call.kind == "custom_tool_call"
    native = [_native(RESPONSES, part, needs_detail=needs_detail) for part in parts]
    return {**item, "output": content if isinstance(content, str) else native}, ()


_OUTPUTS = {"tool_search_call": "tool_search_output"}
#: A screenshot that is none, for a computer that returned text: a PNG of one transparent pixel.
_BLANK = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)


def _approval(result: Result) -> dict[str, Any]:
    """Returns an approval. Only True approves: other text is a reason to refuse."""
    value = result.value
    if isinstance(value, dict) and "approve" in value:
        given = cast("dict[str, Any]", value)
        reason = {"reason": str(given["reason"])} if given.get("reason") is not None else {}
        return {"approve": given["approve"] is True and not result.is_error, **reason}
    if isinstance(value, bool):
        return {"approve": value}
    content = result.content()
    return {"approve": False, "reason": content if isinstance(content, str) else "no answer"}


def _shell_chunks(value: Any) -> list[dict[str, Any]]:
    """Returns the outputs of commands. Empty if the value is something else."""
    chunks = cast("list[Any]", value if isinstance(value, list) else [value])
    are_outputs = all(isinstance(chunk, dict) and {"stdout", "stderr"} & chunk.keys() for chunk in chunks)
    return [_shell_chunk(chunk) for chunk in chunks] if are_outputs else []


def _shell_chunk(chunk: dict[str, Any]) -> dict[str, Any]:
    code = next((chunk[key] for key in ("exit_code", "returncode") if isinstance(chunk.get(key), int)), 0)
    outcome = chunk.get("outcome")
    if not isinstance(outcome, dict):
        outcome = {"type": "exit", "exit_code": code}
    return {"stdout": str(chunk.get("stdout") or ""), "stderr": str(chunk.get("stderr") or ""), "outcome": outcome}


def _native(format: str, part: Part, *, needs_detail: bool = False) -> dict[str, Any]:
    """Returns a part as a format has it. A part of this format stays as it is, what it cannot have becomes text."""
    given = part.given or {}
    kind = given.get("type")
    if isinstance(part, Text):
        own = "input_text" if format == RESPONSES else "text"
        # Of the members of MCP's text, services know none.
        kept = {key: member for key, member in given.items() if key not in _OF_MCP and member is not None}
        return kept if kind == own else {"type": own, "text": part.text}
    if isinstance(part, Image):
        if kind == _IMAGE_OF[format] and (format != ANTHROPIC or "source" in given):
            return {"detail": "auto", **given} if needs_detail else given
        if part.url:
            return _image(format, part.url)
    elif kind in _NATIVE[format]:
        return given
    elif kind == "resource" and isinstance(text := given["resource"].get("text"), str):
        return _native(format, Text(text))
    return _native(format, Text(json.dumps(_as_json(given, []), ensure_ascii=False)))


_OF_MCP = frozenset({"annotations", "meta", "_meta"})
_IMAGE_OF = {CHAT: "image_url", RESPONSES: "input_image", ANTHROPIC: "image"}


def _image(format: str, url: str) -> dict[str, Any]:
    if format == CHAT:
        return {"type": "image_url", "image_url": {"url": url}}
    if format == RESPONSES:
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    head, comma, data = url.partition(";base64,")
    if comma and head.startswith("data:"):
        source = {"type": "base64", "media_type": head.removeprefix("data:"), "data": data}
    else:
        source = {"type": "url", "url": url}
    return {"type": "image", "source": source}


def results_in(
    calls: Sequence[ToolCall], ids: Sequence[str], items: Iterable[Observation], fetch: Callable[[str], bytes]
) -> list[Result]:
    """Returns the results that observations hold: the last one of each call, in the order of the first ones.

    `ids` are the ids under which the calls are recorded.
    """
    found: dict[int, Result] = {}
    known = {name: index for index, name in enumerate(ids[: len(calls)])}
    for item in items:
        index = known.get(item.call_id)
        if index is not None:
            found[index] = result_of(calls[index], item, fetch)
    return list(found.values())
