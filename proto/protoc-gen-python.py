"""A protoc plugin that writes Python messages, their types and, for files with services, gRPC stubs and theirs.

The generators of messages and of stubs are linked into grpc_tools' own protoc and are no plugins, so `buf generate` cannot run them by
itself. Going through a plugin lets buf choose the files and strip `buf.validate` first. Files of google/ are left out: the package
googleapis-common-protos has them, and a process can load only one copy. So what comes out needs grpcio, protobuf and that package.
"""

import sys
import tempfile
from pathlib import Path

from google.protobuf.compiler.plugin_pb2 import CodeGeneratorRequest, CodeGeneratorResponse
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

BIN = Path(sys.executable).parent


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


def main() -> None:
    request = CodeGeneratorRequest.FromString(sys.stdin.buffer.read())
    response = CodeGeneratorResponse(supported_features=CodeGeneratorResponse.FEATURE_PROTO3_OPTIONAL)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if generate(request, folder):
            for path in sorted((folder / "out").rglob("*.py*")):
                response.file.add(name=path.relative_to(folder / "out").as_posix(), content=path.read_text("utf-8"))
        else:
            response.error = "grpc_tools.protoc failed; its reason is printed above"
    sys.stdout.buffer.write(response.SerializeToString())


main()
