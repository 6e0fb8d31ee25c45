#!/bin/sh
# Installs Naiad from a folder of wheels into /opt/naiad. The Dockerfiles and root_file_system.sh
# run the same steps.
#
#   install.sh WHEELS EXTRAS      e.g. install.sh /wheels onnx,cloud
set -eu
wheels=$1 extras=$2

python3 -m venv /opt/naiad
/opt/naiad/bin/python -m pip install --no-cache-dir --no-index --find-links "$wheels" \
    "naiad[$extras]"

# The SBOM lists what pip installed, so it is written before pip itself goes.
/opt/naiad/bin/python "$(dirname "$0")/sbom.py" > /opt/naiad/sbom.cdx.json
/opt/naiad/bin/python -m pip uninstall --yes --quiet setuptools pip

# Tests of packages are not needed to run them. numpy imports numpy/_core/tests only from its own.
find /opt/naiad/lib -type d \( -name tests -o -name test \) -path '*/site-packages/*' \
    -prune -exec rm -rf {} +
# The root file system is read-only when the server runs, so the bytecode is compiled here.
find /opt/naiad/lib -name __pycache__ -prune -exec rm -rf {} +
/opt/naiad/bin/python -m compileall -q /opt/naiad/lib || true

# Triton's images have these paths, and existing command lines name them.
mkdir -p /opt/tritonserver/bin /opt/tritonserver/backends
ln -sf /opt/naiad/bin/tritonserver /opt/tritonserver/bin/tritonserver
