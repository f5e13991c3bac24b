package local

import (
	"log/slog"
	"path/filepath"

	"github.com/dormouse-mcp/dormouse/infra/local/datafolder"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
)

// Checked is what [Run] would do with a servers file.
type Checked struct {
	Servers  *serversfile.File // the servers that Run would serve, and those that it rejects; nil if Run would not start
	Warnings []serversfile.Warning
	Wrong    error // why Run would not start; it may join several errors
}

// Check reads a servers file as [Run] does with this configuration, and builds the same handlers.
// It opens no store and no port, starts no server, and writes nothing.
func Check(cfg Config) Checked {
	m := newMachine(cfg)
	m.file = newServersFile(m)
	servers, warnings, err := m.file.read()
	if err != nil {
		return Checked{Warnings: warnings, Wrong: err}
	}
	m.folder, m.log = &datafolder.Folder{Secret: make([]byte, 32)}, slog.New(slog.DiscardHandler)
	if m.folder.Path, err = filepath.Abs(cfg.Data); err != nil {
		return Checked{Warnings: warnings, Wrong: err}
	}
	in := &inprocess{m: m}
	if err = in.configure(); err == nil {
		err = in.Serve(servers)
	}
	if err != nil {
		return Checked{Warnings: warnings, Wrong: err}
	}
	return Checked{Servers: servers, Warnings: warnings}
}
