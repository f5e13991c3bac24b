package runner

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
)

// A box on Fargate may use any container image. The runner is then not part of that image, but
// runs with the image's user, environment and working folder.

// trust makes the runner accept certificates of the authorities in a file, if its image has none.
// Servers do not get these authorities. If file is "", trust does nothing.
func trust(file string) error {
	if file == "" {
		return nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return fmt.Errorf("%s holds no certificate", file)
	}
	x509.SetFallbackRoots(roots)
	return nil
}

// inImage returns the server with the command that the image starts, if the server is configured
// as "docker run" of that image.
func inImage(s serversfile.Server, image *frame.Image) (serversfile.Server, error) {
	if image == nil {
		return s, nil
	}
	c, ok, err := s.Container()
	if !ok || err != nil {
		return s, err
	}
	start := slices.Concat(image.Entrypoint, c.Args)
	switch {
	case c.Entrypoint != "":
		start = append([]string{c.Entrypoint}, c.Args...)
	case len(c.Args) == 0:
		start = append(start, image.Cmd...)
	}
	if len(start) == 0 {
		return s, errors.New("the image has neither an entry point nor a command: give the command behind the image's name")
	}
	here, err := os.Getwd()
	if err != nil {
		return s, err
	}
	s.Command, s.Args, s.Env, s.Cwd = start[0], start[1:], c.Env, cmp.Or(c.Cwd, here)
	return s, nil
}

// given returns the variables that an image sets.
func given(image *frame.Image) map[string]string {
	all := map[string]string{}
	if image == nil {
		return all
	}
	for _, pair := range image.Env {
		if name, value, ok := strings.Cut(pair, "="); ok {
			all[name] = value
		}
	}
	return all
}
