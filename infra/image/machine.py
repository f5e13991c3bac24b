#!/usr/bin/env python3
"""Makes the image of one machine, without a Docker engine, and pushes it: Node, Python, git
and uv with dormouse and its keeper, for a user without a home. `make image-local` calls it; it prints the
reference of the image with its digest.

    machine.py CRANE IMAGE PLATFORM=PROGRAM...

CRANE is a program, and so is each PROGRAM, the dormouse of its PLATFORM, such as
linux/arm64. PROGRAM-keeper is the keeper of the platform. IMAGE is REPOSITORY:TAG, or a file whose name ends in .tar for `docker load`,
which takes one platform. crane logs in with what `docker login` or `crane auth login` has
left. The same programs on the same base give the same digest.
"""

import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile

BASE = os.environ.get("BASE", "docker.io/library/node:24-bookworm")
UV = os.environ.get("UV", "ghcr.io/astral-sh/uv:0.9.11")
USER = 10001
SECOND = 10**9

# Docker's fields of an image's configuration. --listen and --data are what this image is
# about; the other flags are for who runs it.
CONFIG = {
    "User": f"{USER}:{USER}",
    "WorkingDir": "/config",
    "Volumes": {"/config": {}, "/data": {}},
    "ExposedPorts": {"8787/tcp": {}, "8788/tcp": {}},
    "Entrypoint": ["/usr/local/bin/dormouse"],
    "Cmd": ["run", "--listen", "0.0.0.0:8787"],
    "Healthcheck": {
        "Test": ["CMD-SHELL", 'curl -fsSk -o /dev/null "${DORMOUSE_HEALTH:-http://127.0.0.1:8787/healthz}"'],
        "Interval": 30 * SECOND,
        "Timeout": 10 * SECOND,
        "StartPeriod": 30 * SECOND,
        "StartInterval": SECOND,
        "Retries": 3,
    },
    "Labels": {
        "org.opencontainers.image.source": "https://github.com/dormouse-mcp/dormouse",
        "org.opencontainers.image.licenses": "Apache-2.0",
    },
}
ENV = {"HOME": "/data/home", "LANG": "C.UTF-8", "DORMOUSE_DATA": "/data"}


def layer(program, tools):
    """Returns the layer: the programs, and the folders of the user, without times."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, mode in ("config", 0o755), ("data", 0o700):
            head = tarfile.TarInfo(name)
            head.type, head.mode, head.uid, head.gid = tarfile.DIRTYPE, mode, USER, USER
            archive.addfile(head)
        for name, data in {"dormouse": program, **tools}.items():
            head = tarfile.TarInfo("usr/local/bin/" + name)
            head.size, head.mode = len(data), 0o755
            archive.addfile(head, io.BytesIO(data))
    return out.getvalue()


class Layout:
    """A folder in the form of the OCI image layout."""

    def __init__(self, folder):
        self.blobs = os.path.join(folder, "blobs", "sha256")
        self.index = os.path.join(folder, "index.json")

    def read(self, descriptor):
        with open(os.path.join(self.blobs, descriptor["digest"].split(":")[1]), "rb") as f:
            return json.load(f)

    def write(self, data, **descriptor):
        digest = hashlib.sha256(data).hexdigest()
        with open(os.path.join(self.blobs, digest), "wb") as f:
            f.write(data)
        return {**descriptor, "digest": "sha256:" + digest, "size": len(data)}

    def write_json(self, value, **descriptor):
        return self.write(json.dumps(value, sort_keys=True).encode(), **descriptor)

    def derive(self, base, platform, added):
        """Writes the image that has one layer more than base, and CONFIG."""
        manifest = self.read(base)
        config = self.read(manifest["config"])
        own = config.setdefault("config", {})
        own.update(CONFIG)
        before = [e for e in own.get("Env") or [] if e.split("=")[0] not in ENV]
        own["Env"] = before + [f"{name}={value}" for name, value in ENV.items()]
        config["rootfs"]["diff_ids"].append("sha256:" + hashlib.sha256(added).hexdigest())
        config.setdefault("history", []).append({"created_by": "infra/image/machine.py"})
        manifest["config"] = self.write_json(config, mediaType=manifest["config"]["mediaType"])
        docker = "docker" in manifest["mediaType"]
        kind = "application/vnd.docker.image.rootfs.diff.tar.gzip" if docker else "application/vnd.oci.image.layer.v1.tar+gzip"
        manifest["layers"].append(self.write(gzip.compress(added, mtime=0), mediaType=kind))
        system, arch = platform.split("/")
        return self.write_json(manifest, mediaType=manifest["mediaType"], platform={"os": system, "architecture": arch})


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    crane, image, *programs = sys.argv[1:]

    def run(*args, **more):
        return subprocess.run([crane, *args], check=True, stdout=subprocess.PIPE, **more).stdout

    with tempfile.TemporaryDirectory() as folder:
        layout, made = Layout(folder), []
        for program in programs:
            platform, path = program.split("=", 1)
            run("pull", "--format", "oci", "--platform", platform, BASE, folder)
            with open(layout.index, encoding="utf-8") as f:
                base = json.load(f)["manifests"][-1]
            with tarfile.open(fileobj=io.BytesIO(run("export", "--platform", platform, UV, "-"))) as archive:
                tools = {name: archive.extractfile(name).read() for name in ("uv", "uvx")}
            with open(path, "rb") as f, open(path + "-keeper", "rb") as keeper:
                added = layer(f.read(), {"dormouse-keeper": keeper.read(), **tools})
            made.append(layout.derive(base, platform, added))
        with open(layout.index, "w", encoding="utf-8") as f:
            json.dump({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": made}, f, sort_keys=True)
        if image.endswith(".tar"):
            save(layout, made, image)
            print(image)
        else:
            print(run("push", "--index", folder, image).decode().strip())


def save(layout, made, path):
    """Writes the archive that docker load reads."""
    if len(made) != 1:
        sys.exit("machine.py: an archive has one platform; push the image to a registry, or name one")
    manifest = layout.read(made[0])
    names = [d["digest"].split(":")[1] for d in [manifest["config"], *manifest["layers"]]]
    with tarfile.open(path, "w") as archive:
        for name in names:
            archive.add(os.path.join(layout.blobs, name), name)
        text = json.dumps([{"Config": names[0], "RepoTags": ["dormouse:local"], "Layers": names[1:]}]).encode()
        head = tarfile.TarInfo("manifest.json")
        head.size = len(text)
        archive.addfile(head, io.BytesIO(text))


main()
