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

// readServers reads the servers file, and the files of variables that belong to it.
// Nothing else on this machine reads them.
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

// acceptedServers is the file in the data folder with which the functions are handed what
// readServers has read. Its name has its digest, so a process never sees it change. It
// holds secrets, so it is this user's alone. It is removed at the end, and one that a killed
// run has left at the next start.
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
