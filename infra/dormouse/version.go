package dormouse

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
	"github.com/dormouse-mcp/dormouse/shared/store/sqlitestore"
)

type versionCommand struct{ printing }

// build says how this program was built.
type build struct {
	Version  string   `json:"version"`            // version of the module, such as v0.4.0; "devel" if unknown
	Commit   string   `json:"commit,omitempty"`   // full hash
	Modified bool     `json:"modified,omitempty"` // the source had uncommitted changes
	Time     string   `json:"time,omitempty"`     // time of the commit, RFC 3339
	Go       string   `json:"go"`
	Platform string   `json:"platform"`          // OS/ARCHITECTURE
	Store    int      `json:"store"`             // version of the SQLite store's format
	Protocol []string `json:"protocol_versions"` // protocol versions that clients may use, the newest first
}

// builtAs reads the information about the build that the go command has put into this program.
func builtAs() build {
	b := build{
		Version: api.Version(), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, Store: sqlitestore.Version,
		Protocol: append([]string{wire.V20260728}, wire.LegacyVersions()...),
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Path != "github.com/dormouse-mcp/dormouse" { // the commit is that of a program with servers in Go
		return b
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

func (b build) line() string {
	text := "dormouse " + b.Version
	if b.Commit != "" {
		text += " (" + b.Commit[:min(12, len(b.Commit))]
		if b.Modified {
			text += ", modified"
		}
		text += ")"
	}
	return text + " " + b.Go + " " + b.Platform
}

func (c *versionCommand) Run(t *terminal) error {
	b := builtAs()
	if c.JSON {
		return t.printJSON(b)
	}
	_, err := fmt.Fprintf(t.out, "%s\nprotocol versions %s\nstore %d\n", b.line(), strings.Join(b.Protocol, ", "), b.Store)
	return err
}
