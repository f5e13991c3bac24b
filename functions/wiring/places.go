package wiring

import (
	"path/filepath"
	"slices"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet/places"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// needs returns what the next start of a box requires of the place where it runs.
func (f *Function) needs(b storage.Box) places.Needs {
	s, _ := f.Servers.Server(b.Server)
	_, container, _ := s.Container() // an error is ignored, because the start of the box reports it
	installers := []string{"npx", "npm", "pnpm", "yarn", "bunx", "uvx", "uv", "pipx"}
	return places.Needs{
		Wish: s.Box.Place, Attempt: b.Attempt, Busy: b.Busy,
		CPUs: s.Box.CPUs, MemoryMB: s.Box.MemoryMB, ToolTimeout: s.ToolTimeout,
		Image: s.Box.Image != "" || container, HostPath: s.Box.HostPath != "" && s.Box.HostPathWritable,
		Confined: s.Box.Profile != "" || s.Box.ReadOnlyRootFS || s.Box.Offline,
		Installs: slices.Contains(installers, filepath.Base(s.Command)) && b.Installed != s.Definition(),
	}
}
