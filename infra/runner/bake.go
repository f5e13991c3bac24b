package runner

import (
	"context"
	"log/slog"
	"maps"
	"os"

	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/box/sandbox"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
)

// BakeConfig says where servers are installed and for which image.
type BakeConfig struct {
	Cache   string // folder of installs on this machine
	Work    string // folder for temporary files
	Image   provision.BakeConfig
	Environ map[string]string // more variables for the installers
	Compile bool              // this machine has the platform of the image, so modules of Python are compiled here
	Log     *slog.Logger
}

// Bake installs a server for an image, with its variables. It returns the name of the
// install's folder.
func Bake(ctx context.Context, s serversfile.Server, c BakeConfig) (string, error) {
	s, err := s.Resolve(os.LookupEnv)
	if err != nil {
		return "", err
	}
	environ := ownEnvironment()
	maps.Copy(environ, c.Environ)
	return provision.New(provision.Config{
		Base: c.Work, Cache: c.Cache, Confine: installSandboxes(s, c.Work, surroundings(s, environ), sandbox.Probe()), Compile: c.Compile, Environ: environ, Log: c.Log,
	}, provision.Server{Command: s.Command, Args: s.Args, Env: s.Env, Unset: s.Unset, Cwd: s.Cwd, Scripts: s.Box.InstallScripts}).Bake(ctx, c.Image)
}
