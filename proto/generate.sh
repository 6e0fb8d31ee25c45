#!/usr/bin/env bash
# generate.sh: proto/*.proto -> naiad/pb/*_pb2.py and .pyi. Needs grpcio-tools 1.75.1 in $PYTHON (default: python3).
# That release writes protobuf 6.31 code, which runs on protobuf >= 6.31, < 8. A newer one would raise that floor.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
want=1.75.1
have=$("$python" -c 'from importlib.metadata import version; print(version("grpcio-tools"))') || have=none
if [ "$have" != "$want" ]; then
    echo "generate.sh: grpcio-tools $want is needed, $python has $have; set PYTHON to an interpreter that has it" >&2
    exit 1
fi
mkdir -p naiad/pb
# The virtual path gives the files a naiad/ name in the descriptor pool, so that no other package's file of the same name collides.
# grpcio-tools.protoc is given no --grpc_python_out: the transport is ours, only messages are needed.
"$python" -m grpc_tools.protoc -Inaiad/pb=proto --python_out=. --pyi_out=. proto/model_config.proto proto/grpc_service.proto proto/health.proto

# Clients need the names of the wire, and imports that resolve in their folder: proto/client has the same messages with these.
mkdir -p proto/client
for file in model_config grpc_service health; do
    package=inference
    [ "$file" = health ] && package=grpc.health.v1
    { echo "// For clients. Made from proto/$file.proto by generate.sh; never edit it."; sed "1,/^syntax/{/^syntax/!d}; s/^package naiad;/package $package;/; s|naiad/pb/||; s/naiad\.ModelConfig/inference.ModelConfig/" "proto/$file.proto"; } > "proto/client/$file.proto"
done
