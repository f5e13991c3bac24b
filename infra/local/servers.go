package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/dormouse-mcp/dormouse/shared/catalog"
)

// readServers reads the servers file and its files of variables. Nothing else on this
// machine reads them.
func (m *machine) readServers(context.Context) error {
	servers, warnings, err := catalog.LoadHere(m.cfg.Servers, m.environ.lookup, m.cfg.EnvFiles...)
	if err != nil {
		return err
	}
	for _, w := range warnings {
		_, _ = fmt.Fprintf(m.cfg.Log, "warning: %v\n", w)
	}
	var rejected []error
	for _, r := range servers.Rejected() {
		rejected = append(rejected, errors.New(r.String()))
	}
	if m.cfg.Strict && rejected != nil {
		return errors.Join(rejected...)
	}
	for _, err := range rejected {
		_, _ = fmt.Fprintf(m.cfg.Log, "warning: %v\n", err)
	}
	m.servers = servers
	return nil
}

// acceptedServers writes the servers that readServers has read to a file in the data folder,
// for the functions. The digest is part of its name, so a process never sees the file
// change. The file holds secrets, so only this user may read it. The machine removes it at
// the end; the next start removes the file of a killed run.
func (m *machine) acceptedServers() (string, error) {
	data := m.servers.Marshal()
	sum := sha256.Sum256(data)
	path := m.folder.File("accepted-" + hex.EncodeToString(sum[:8]) + ".json")
	older, err := filepath.Glob(m.folder.File("accepted-*.json"))
	if err != nil {
		return "", err
	}
	for _, file := range older {
		if err := os.Remove(file); err != nil {
			return "", err
		}
	}
	return path, os.WriteFile(path, data, 0o600)
}
