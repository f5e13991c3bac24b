package local

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// BenchmarkBox compares a call of a box inside with one of a box that is a process.
func BenchmarkBox(b *testing.B) {
	for name, apart := range map[string]bool{"inside": false, "process": true} {
		b.Run(name, func(b *testing.B) {
			c := boxed(b, apart)
			c.pid("pid")
			for b.Loop() {
				c.pid("pid")
			}
		})
	}
}

// boxed starts a machine, and opens a session of one of its servers. arguments are for runners.
func boxed(b *testing.B, apart bool, arguments ...string) *client {
	b.Helper()
	m := started(b, func(c *Config) {
		commontest.OK(b, os.WriteFile(c.Servers, stdioServers(b), 0o600))
		c.Environ = append(os.Environ(), "DORMOUSE_CACHE="+filepath.Join(b.TempDir(), "cache"))
		c.Log, c.Apart, c.Runner = io.Discard, apart, append([]string{os.Args[0], runnerRole}, arguments...)
	})
	return open(b, m.public.address(0)+"/one/mcp")
}
