package dormouse

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/dormouse-mcp/dormouse/infra/runner"
	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
)

// Where the image of the boxes has installed servers and Python. infra/image has the same values.
const (
	bakedAt       = "/usr/local/share/dormouse/installs"
	imagePython   = "/usr/bin/python3"
	pythonVersion = "3.11"      // version of imagePython
	bakedInto     = "bin/baked" // make image copies this folder into the image, as bakedAt
)

type imageCommand struct {
	fileFlag
	Platform string `default:"${platform}" help:"Platform of the boxes: linux/arm64 or linux/amd64."`
	printing
}

// Validate is called by kong.
func (c *imageCommand) Validate() error {
	if c.Platform != "linux/arm64" && c.Platform != "linux/amd64" {
		return fmt.Errorf("--platform %s: want linux/arm64 or linux/amd64", c.Platform)
	}
	return nil
}

// ownPlatform returns the platform of boxes that fits this machine's processor.
func ownPlatform() string {
	if runtime.GOARCH == "arm64" {
		return "linux/arm64"
	}
	return "linux/amd64"
}

// bakedServer is the result for one server, in JSON output.
type bakedServer struct {
	Server string `json:"server"`
	Digest string `json:"digest,omitempty"` // hash of the install request, which is also the name of the install's folder
	Why    string `json:"why,omitempty"`    // why the server is not installed in the image; "" if it is
}

// Run installs the servers of the servers file for the image of the boxes. A server that cannot be
// installed is no error, because its box installs it later.
func (c *imageCommand) Run(t *terminal) error {
	ctx, stop := interruptible()
	defer stop()
	text, err := serversfile.ReadFile(c.Servers, serversfile.MaxFile)
	if err != nil {
		return err
	}
	all, _, err := serversfile.Parse(text, c.Servers, nil)
	if err != nil {
		return err
	}
	arch := strings.TrimPrefix(c.Platform, "linux/")
	into, err := filepath.Abs(bakedInto)
	if err != nil {
		return err
	}
	cache := filepath.Join(filepath.Dir(into), "baking-"+arch)
	work := filepath.Join(cache, "work")
	if err := errors.Join(os.RemoveAll(into), os.RemoveAll(work), os.MkdirAll(work, 0o755), os.MkdirAll(into, 0o755)); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }() // an error is ignored: the next run removes the folder
	config := runner.BakeConfig{
		Cache: cache, Work: work, Compile: c.Platform == "linux/"+runtime.GOARCH && runtime.GOOS == "linux", Log: slog.New(slog.DiscardHandler),
		Image: provision.BakeConfig{To: into, At: bakedAt, Python: imagePython, Version: pythonVersion},
	}
	if !config.Compile {
		config.Environ = map[string]string{"npm_config_os": "linux", "npm_config_libc": "glibc", "npm_config_cpu": strings.Replace(arch, "amd64", "x64", 1)}
	}
	var rows []bakedServer
	for _, name := range all.Names() {
		s, ok := all.Server(name)
		if !ok || s.Command == "" {
			continue // a remote or native server has nothing to install
		}
		_, _ = fmt.Fprintf(t.err, "baking %s\n", s.Name) // an error is ignored: this line only shows progress
		rows = append(rows, bakeOne(ctx, s, config))
		if err := context.Cause(ctx); err != nil {
			return err
		}
	}
	for _, r := range all.Rejected() {
		rows = append(rows, bakedServer{Server: r.Name, Why: r.Reason()})
	}
	return c.show(t, rows, func() error {
		return table(t.out, func(say func(format string, args ...any)) {
			say("SERVER\tDIGEST\tNOTE\n")
			for _, r := range rows {
				say("%s\t%.12s\t%s\n", r.Server, r.Digest, r.Why)
			}
		})
	})
}

// bakeOne installs one server for the image.
func bakeOne(ctx context.Context, s serversfile.Server, c runner.BakeConfig) bakedServer {
	row := bakedServer{Server: s.Name}
	if p, ok := provision.PackageOf(s.Command, s.Args); ok && p.Kind == "pypi" && !c.Compile {
		row.Why = "a Python package is baked on a Linux machine with the processor of the boxes"
		return row
	}
	var err error
	if row.Digest, err = runner.Bake(ctx, s, c); err != nil {
		row.Why = err.Error()
	}
	return row
}
