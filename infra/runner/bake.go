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

// BakeConfig says where a server's package is installed, and for which container image.
type BakeConfig struct {
	Cache   string // folder of this machine's install cache
	Work    string // folder for temporary files
	Image   provision.BakeConfig
	Environ map[string]string // variables for the installers, in addition to those of this program
	Compile bool              // compile Python modules; this machine must have the platform of the image
	Log     *slog.Logger
}

// Bake installs the package of a server for a container image; see [provision.Provisioner.Bake].
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
