#!/usr/bin/env bash
# Makes the image that the Dockerfile beside it describes, without a Docker engine, and
# pushes it. `make image` calls it; it prints the reference of the image with its digest.
#
#   push.sh CRANE RUNNER PLATFORM IMAGE <password
#
# CRANE and RUNNER are programs, PLATFORM is linux/arm64 or linux/amd64, IMAGE is
# REPOSITORY:TAG. The password is the one of the user AWS at the registry of IMAGE. It is
# written to a file of this run only. LOCKS, if it is set, is a folder of locks of installs,
# which the image gets. BAKED, if it is set, is a folder of installs, which dormouse image
# has made. The same files on the same base give the same digest.
set -euo pipefail
[ $# = 4 ] || { sed -n '5p' "$0" >&2; exit 2; }
crane=$1 runner=$2 platform=$3 image=$4
base=${BASE:-docker.io/library/node:24-bookworm}
uv=${UV:-ghcr.io/astral-sh/uv:0.9.11}

umask 077
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export DOCKER_CONFIG=$folder

"$crane" export --platform "$platform" "$uv" "$folder/uv.tar"
# The layer: three programs, the locks and the installs, owned by root and without a time.
python3 - "$folder/layer.tar" "$runner" "$folder/uv.tar" "${LOCKS:-}" "${BAKED:-}" <<'PYTHON'
import io, os, sys, tarfile
layer, runner, uv, locks, baked = sys.argv[1:]
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
    for at, folders, files in os.walk(baked) if baked else []:
        folders.sort()
        for name in sorted(files + [f for f in folders if os.path.islink(os.path.join(at, f))]):
            file = os.path.join(at, name)
            into = "usr/local/share/dormouse/installs/" + os.path.relpath(at, baked) + "/"
            if os.path.islink(file):
                head = tarfile.TarInfo(os.path.normpath(into + name))
                head.type, head.mode, head.linkname = tarfile.SYMTYPE, 0o777, os.readlink(file)
                out.addfile(head)
            else:
                with open(file, "rb") as f:
                    add(os.path.normpath(into + name), f.read(), "", 0o755 if os.stat(file).st_mode & 0o100 else 0o644)
PYTHON
"$crane" auth login "${image%%/*}" --username AWS --password-stdin 2>/dev/null ||
  { printf 'push.sh: want the password of the user AWS at %s on stdin\n' "${image%%/*}" >&2; exit 1; }
"$crane" mutate --platform "$platform" --append "$folder/layer.tar" --entrypoint /usr/local/bin/dormouse-runner \
  --env LANG=C.UTF-8 --env UV_PYTHON_DOWNLOADS=never --env DORMOUSE_LOCKS=/usr/local/share/dormouse/locks --env DORMOUSE_BAKED=/usr/local/share/dormouse/installs --workdir / --user 0 --tag "$image" "$base"
