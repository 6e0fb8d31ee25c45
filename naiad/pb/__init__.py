"""Generated protobuf messages: what travels over gRPC and what a config.pbtxt holds.

Everything beside this file is written by proto/generate.sh from proto/*.proto and never edited.
"""
