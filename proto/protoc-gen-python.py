"""A protoc plugin that writes Python messages, their types and, for files with services, gRPC stubs and theirs.

The generators of messages and of stubs are linked into grpc_tools' own protoc and are no plugins, so `buf generate` cannot run them by
itself. Going through a plugin lets buf choose the files and strip `buf.validate` first. Files of google/ are left out: the package
googleapis-common-protos has them, and a process can load only one copy. So what comes out needs grpcio, protobuf and that package.

It also writes records.py: the resources as the package shows them, with the comments of the protos.
"""

import sys
import tempfile
from pathlib import Path

from google.protobuf.compiler.plugin_pb2 import CodeGeneratorRequest, CodeGeneratorResponse
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

BIN = Path(sys.executable).parent

#: Messages that become records, with those that their fields name.
RECORDS = (
    "Experiment",
    "Run",
    "Stage",
    "Group",
    "Rollout",
    "Attempt",
    "Task",
    "Trajectory",
    "Progress",
    "StatusChange",
    "RunComparison",
    "Summary",
)
RECORDS_HEAD = '''"""The resources of a server: one class for each message, with its fields as attributes. Generated from the protos."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from anabranch._wire.record import Record
'''
TYPES = {
    FieldDescriptorProto.TYPE_STRING: "str",
    FieldDescriptorProto.TYPE_BOOL: "bool",
    FieldDescriptorProto.TYPE_DOUBLE: "float",
    FieldDescriptorProto.TYPE_ENUM: "str",
    FieldDescriptorProto.TYPE_INT32: "int",
    FieldDescriptorProto.TYPE_INT64: "int",
}
TIMES = {".google.protobuf.Timestamp": "datetime", ".google.protobuf.Duration": "timedelta"}
#: The server sets these in every answer.
ALWAYS = {"create_time", "update_time", "change_time"}


def plugin(generator: str, folder: Path) -> Path:
    """Returns a program that runs a generator of this venv, whose own programs name the folder in which it was made."""
    program = folder / f"protoc-gen-{generator}"
    program.write_text(f"#!/bin/sh\nexec '{sys.executable}' '{BIN / program.name}' \"$@\"\n")
    program.chmod(0o755)
    return program


def generate(request: CodeGeneratorRequest, folder: Path) -> bool:
    descriptors = folder / "descriptors.binpb"
    descriptors.write_bytes(FileDescriptorSet(file=request.proto_file).SerializeToString())
    out = folder / "out"
    out.mkdir()
    own = [name for name in request.file_to_generate if not name.startswith("google/")]
    with_services = {file.name for file in request.proto_file if file.service}
    runs = [
        (["python", "mypy"], own),
        (["grpc_python", "mypy_grpc"], [name for name in own if name in with_services]),
    ]
    for generators, files in runs:
        arguments = ["protoc", f"--descriptor_set_in={descriptors}"]
        for generator in generators:
            arguments.append(f"--{generator}_out={out}")
            if generator.startswith("mypy"):
                arguments.append(f"--plugin=protoc-gen-{generator}={plugin(generator, folder)}")
                arguments.append(f"--{generator}_opt=quiet")
        if files and protoc.main(arguments + sorted(files)) != 0:
            return False
    return True


def records(request: CodeGeneratorRequest) -> str:
    """Returns the source of records.py. The comments of fields are their docstrings."""
    messages: dict[str, tuple[DescriptorProto, dict[tuple[int, ...], str]]] = {}
    for file in request.proto_file:
        comments = {tuple(each.path): each.leading_comments.strip() for each in file.source_code_info.location}
        for index, message in enumerate(file.message_type):
            own = {path[2:]: text for path, text in comments.items() if path[:2] == (4, index)}
            messages[f".{file.package}.{message.name}"] = (message, own)
    waiting = [f".anabranch.v1.{name}" for name in RECORDS]
    source = RECORDS_HEAD
    for name in waiting:
        message, comments = messages[name]
        entries = {each.name: each for each in message.nested_type if each.options.map_entry}
        source += f"\n\nclass {message.name}(Record):\n{docstring(comments.get((), ''))}"
        for index, field in enumerate(message.field):
            attribute, kind = attribute_of(field, entries, waiting)
            comment = comments.get((2, index), "")
            if attribute != field.name:
                # The attribute is the value that the text has.
                comment = comment.replace(" as strict JSON text", "").replace(", a JSON object as text", "")
            source += f"\n    {attribute}: {kind}\n{docstring(comment)}"
    return source


def attribute_of(
    field: FieldDescriptorProto, entries: dict[str, DescriptorProto], waiting: list[str]
) -> tuple[str, str]:
    """Returns the name and the type of an attribute. Adds the message that it names to those that wait."""
    if field.name.endswith("_json"):
        return field.name.removesuffix("_json"), "Any"
    entry = entries.get(field.type_name.rsplit(".", 1)[-1])
    if entry is not None:
        return (
            field.name,
            f"Mapping[{attribute_of(entry.field[0], {}, waiting)[1]}, {plain_of(entry.field[1], waiting)}]",
        )
    kind = plain_of(field, waiting)
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return field.name, f"tuple[{kind}, ...]"
    can_be_unset = field.proto3_optional or (
        field.type == FieldDescriptorProto.TYPE_MESSAGE and field.name not in ALWAYS
    )
    return field.name, f"{kind} | None" if can_be_unset else kind


def plain_of(field: FieldDescriptorProto, waiting: list[str]) -> str:
    if field.type != FieldDescriptorProto.TYPE_MESSAGE:
        return TYPES[field.type]
    if field.type_name not in TIMES and field.type_name not in waiting:
        waiting.append(field.type_name)
    return TIMES.get(field.type_name) or field.type_name.rsplit(".", 1)[-1]


def docstring(comment: str) -> str:
    text = comment.replace("\n ", "\n    ").replace("\\", "\\\\")
    return f'    """{text}"""\n' if text else ""


def main() -> None:
    request = CodeGeneratorRequest.FromString(sys.stdin.buffer.read())
    response = CodeGeneratorResponse(supported_features=CodeGeneratorResponse.FEATURE_PROTO3_OPTIONAL)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if generate(request, folder):
            for path in sorted((folder / "out").rglob("*.py*")):
                response.file.add(name=path.relative_to(folder / "out").as_posix(), content=path.read_text("utf-8"))
            # buf calls the plugin for each folder.
            if any(name.startswith("anabranch/") for name in request.file_to_generate):
                response.file.add(name="anabranch/v1/records.py", content=records(request))
        else:
            response.error = "grpc_tools.protoc failed; its reason is printed above"
    sys.stdout.buffer.write(response.SerializeToString())


main()
