#!/usr/bin/env bash
# Makes the image that the Dockerfile beside it describes, without a Docker engine, and
# pushes it. `make image` calls it; it prints the reference of the image with its digest.
#
#   push.sh CRANE RUNNER PLATFORM IMAGE <password
#
# CRANE and RUNNER are programs, PLATFORM is linux/arm64 or linux/amd64, IMAGE is
# REPOSITORY:TAG. The password is the one of the user AWS at the registry of IMAGE. It is
# written to a file of this run only. LOCKS, if it is set, is a folder of locks of installs,
# which the image gets. The same files on the same base give the same digest.
set -euo pipefail
[ $# = 4 ] || { sed -n '5p' "$0" >&2; exit 2; }
crane=$1 runner=$2 platform=$3 image=$4
base=${BASE:-docker.io/library/node:22-bookworm}
uv=${UV:-ghcr.io/astral-sh/uv:0.9.11}

umask 077
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export DOCKER_CONFIG=$folder

"$crane" export --platform "$platform" "$uv" "$folder/uv.tar"
# The layer: three programs and the locks, owned by root and without a time.
python3 - "$folder/layer.tar" "$runner" "$folder/uv.tar" "${LOCKS:-}" <<'PYTHON'
import io, os, sys, tarfile
layer, runner, uv, locks = sys.argv[1:]
with tarfile.open(layer, "w", format=tarfile.PAX_FORMAT) as out, tarfile.open(uv) as tools:
    def add(name, data, folder="usr/local/bin/", mode=0o755):
        head = tarfile.TarInfo(folder + name)
        head.size, head.mode = len(data), mode
        out.addfile(head, io.BytesIO(data))
    with open(runner, "rb") as f:
        add("dormouse-runner", f.read())
    for name in "uv", "uvx":
        add(name, tools.extractfile(name).read())
    for name in sorted(os.listdir(locks)) if locks else []:
        if not name.endswith((".lock", ".making", ".output")):  # what starts leave beside a lock
            with open(os.path.join(locks, name), "rb") as f:
                add(name, f.read(), "usr/local/share/dormouse/locks/", 0o644)
PYTHON
"$crane" auth login "${image%%/*}" --username AWS --password-stdin 2>/dev/null ||
  { printf 'push.sh: want the password of the user AWS at %s on stdin\n' "${image%%/*}" >&2; exit 1; }
"$crane" mutate --platform "$platform" --append "$folder/layer.tar" --entrypoint /usr/local/bin/dormouse-runner \
  --env LANG=C.UTF-8 --env UV_PYTHON_DOWNLOADS=never --env DORMOUSE_LOCKS=/usr/local/share/dormouse/locks --workdir / --user 0 --tag "$image" "$base"
