#!/usr/bin/env bash
# Runs the functions in the containers of sam local invoke. engine.sh gives it a Docker
# engine; in one that was just started there is no image, and no way to fetch one.
set -euo pipefail
cd "$(dirname "$0")/../.."

# The container that functions run in has of Amazon's image what a static program needs
# of it: SAM's emulator of the Runtime API, and the folders.
if [ -n "${ENGINE_STARTED:-}" ]; then
  case $(uname -m) in aarch64) arch=arm64 ;; *) arch=x86_64 ;; esac
  files=$(mktemp -d)
  mkdir -p "$files"/{opt,tmp,var/rapid,var/runtime,var/task}
  cp "$(dirname "$1")"/../lib/python*/site-packages/samcli/local/rapid/aws-lambda-rie-$arch "$files/var/rapid/aws-lambda-rie"
  chmod 755 "$files/var/rapid/aws-lambda-rie"
  tar -C "$files" -c . | docker import --change 'WORKDIR /var/task' --change 'ENTRYPOINT ["/var/rapid/aws-lambda-rie"]' \
    --change 'ENV LAMBDA_TASK_ROOT=/var/task' --change 'ENV LAMBDA_RUNTIME_DIR=/var/runtime' --change 'ENV PATH=/usr/local/bin:/bin' \
    - "public.ecr.aws/lambda/provided:al2023-rapid-$arch" >/dev/null
  rm -rf "$files"
fi
exec go test -count=1 -tags samlocal -run '^Test.*UnderSAMLocal$' -timeout 10m ./infra/stack
