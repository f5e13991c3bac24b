package local

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
)

// acceptedServers is the file in the data folder with which the functions are handed what
// readServers has read. Its name has its digest, so a process never sees it change. It
// holds secrets, so it is this user's alone, and an older one is removed.
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
