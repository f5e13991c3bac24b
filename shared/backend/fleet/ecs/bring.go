package ecs

import (
	"context"
	"encoding/json"
	"fmt"
	"path"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
)

// No image needs to have the runner program. A first container of the task puts the program
// into a volume, and ends. The container with the image starts after it, with the program from
// the volume as its entry point. The user, environment and working folder are those of the
// image.

const (
	// fetcher is the name of the first container.
	fetcher = "fetch"
	// fetcherImage is alpine:3.22 for both architectures, 4 MB, whose wget checks
	// certificates.
	fetcherImage = "public.ecr.aws/docker/library/alpine@sha256:14358309a308569c32bdc37e2e0e9694be33a9d99e68afb0f5ff33cc1f695dce"
	// fetchTime is the number of seconds after which ECS gives up the first container.
	fetchTime = 60
	// fetchMB is reserved for the first container. ECS refuses containers that reserve more than
	// their task has.
	fetchMB = 64

	volume = "dormouse"
	// brought is the folder of the volume in both containers.
	brought = "/dormouse"
)

// Variables of the first container.
const (
	urlEnv = "RUNNER_URL"
	sumEnv = "RUNNER_SHA256"
)

// fetch is the script of the first container, whose working folder is the volume. Besides the
// runner program, the script puts root certificates and a folder for caches into the volume,
// because an image may have neither.
const fetch = `for try in 1 2 3; do wget -q -T 15 -O runner "$RUNNER_URL" && break; sleep 1; done
echo "$RUNNER_SHA256  runner" | sha256sum -c
chmod 0755 runner
cp /etc/ssl/certs/ca-certificates.crt roots.pem
mkdir -m 1777 cache`

// bringing returns the first container. It changes runner, the container with the image, to wait
// for the first container and to start the program in the volume.
func (f *Fleet) bringing(runner *contents) contents {
	mounts := []mount{{volume, brought}}
	first := contents{
		Name: fetcher, Image: fetcherImage, EntryPoint: []string{"/bin/sh", "-ec"}, Command: []string{fetch},
		Folder: brought, Mounts: mounts, Reserved: fetchMB, StartTimeout: fetchTime, ReadOnly: true, Log: f.logs(),
	}
	first.Linux.Capabilities.Drop = []string{"ALL"}
	runner.Reserved = runner.Memory - fetchMB
	runner.EntryPoint, runner.Mounts = []string{path.Join(brought, "runner")}, mounts
	runner.After = []dependency{{fetcher, "SUCCESS"}}
	runner.Environment = []variable{
		{"DORMOUSE_CACHE", path.Join(brought, "cache")}, {frame.EnvRoots, path.Join(brought, "roots.pem")},
	}
	return first
}

// pin names the image of the container by its digest. Later starts with this definition need not
// ask the registry, and have the same image even if its tag moves. pin also tells the runner which
// program the image starts, because ECS does not.
func (f *Fleet) pin(ctx context.Context, c *contents) error {
	name, config, err := f.cfg.Inspect(ctx, c.Image)
	if err != nil {
		return err
	}
	text, err := json.Marshal(config)
	if err != nil {
		return fmt.Errorf("%w: the configuration of the image %s cannot be written as JSON: %w", fleet.ErrInvalid, c.Image, err)
	}
	c.Image, c.Environment = name, append(c.Environment, variable{frame.EnvImage, string(text)})
	return nil
}
