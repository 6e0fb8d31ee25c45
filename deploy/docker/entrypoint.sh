#!/bin/sh
# Runs the command line of `docker run`. Flags alone belong to tritonserver.
case "${1-}" in
    "" | -*) set -- tritonserver "$@" ;;
esac
exec "$@"
