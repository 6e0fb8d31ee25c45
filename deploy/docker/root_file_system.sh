#!/bin/bash
# Builds the CPU image's root file system without a container engine, from Debian's packages and
# with the image's install steps. Run it as root; it needs mmdebstrap.
#
#   root_file_system.sh OUT [MIRROR]
#
# OUT/root is the root file system afterwards. `make image-test` then runs the server in it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/../.." && pwd)
out=$(realpath -m "$1") mirror=${2:-}
extras=${EXTRAS:-onnx,cloud,otel} debian=${DEBIAN:-bookworm} python=${PYTHON:-python3}
mkdir -p "$out"
rm -rf "$out/root" "$out/builder"

# Debian's slim images leave out the same documents.
slim=(
    --dpkgopt=path-exclude=/usr/share/doc/* --dpkgopt=path-include=/usr/share/doc/*/copyright
    --dpkgopt=path-exclude=/usr/share/man/* --dpkgopt=path-exclude=/usr/share/info/*
    --dpkgopt=path-exclude=/usr/share/locale/* --dpkgopt=path-exclude=/usr/share/lintian/*
)
root() { # root FOLDER PACKAGE...
    local folder=$1
    shift
    mmdebstrap --quiet --variant=minbase --mode=root "${slim[@]}" \
        --aptopt='APT::Install-Recommends "false"' \
        --include="$(IFS=,; echo "$*")" "$debian" "$folder" ${mirror:+"$mirror"}
}

"$python" -m pip wheel --quiet --wheel-dir "$out/wheels" "$source[$extras]"

mapfile -t packages < "$here/packages.txt"
root "$out/builder" "${packages[@]}" python3-venv
mkdir -p "$out/builder/src" "$out/builder/wheels"
cp "$here/install.sh" "$here/sbom.py" "$out/builder/src/"
cp "$out/wheels"/*.whl "$out/builder/wheels/"
env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$out/builder" sh /src/install.sh /wheels "$extras"

root "$out/root" "${packages[@]}"
rm -rf "$out/root"/var/lib/apt/lists/* "$out/root"/var/cache/* "$out/root"/var/log/*
cp -a "$out/builder/opt/naiad" "$out/builder/opt/tritonserver" "$out/root/opt/"
install -m 755 "$here/entrypoint.sh" "$out/root/opt/naiad/bin/entrypoint.sh"
install -m 644 "$here/healthcheck.py" "$out/root/opt/naiad/healthcheck.py"
chroot "$out/root" useradd --uid 1000 --user-group --home-dir /cache --no-create-home \
    --shell /usr/sbin/nologin naiad
chroot "$out/root" install -d -o naiad -g naiad -m 0700 /cache
chroot "$out/root" install -d -o naiad -g naiad /models
rm -rf "$out/builder"
echo "$out/root: $(du -sxm "$out/root" | cut -f1) MB"
