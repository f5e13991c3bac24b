package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Servers in Go are part of the functions, and a user may have functions of their own
// that have some.

// program is the program of a function: the user's own, if there is one.
func (e *emulated) program(name string) string {
	if e.m.cfg.Own != "" {
		own := filepath.Join(e.m.cfg.Own, name)
		if _, err := os.Stat(own); err == nil {
			return own
		}
	}
	return filepath.Join(e.m.cfg.Programs, name)
}

// checkTime bounds one start of a function that only says whether it can.
const checkTime = 30 * time.Second

// checkNatives has the functions say whether they have the servers in Go that the
// servers file names, so that one they do not have is known now, and not with the first
// message.
func (e *emulated) checkNatives(ctx context.Context, env []string) error {
	if !slices.ContainsFunc(e.m.servers.Names(), func(name string) bool {
		s, _ := e.m.servers.Server(name)
		return s.Native != "" && !s.Disabled
	}) {
		return nil
	}
	for _, f := range e.configs() {
		if f.Name != "http" && f.Name != "socket" {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, checkTime)
		cmd := exec.CommandContext(ctx, f.Path)
		cmd.Env = append(slices.Concat(env, f.Env), "DORMOUSE_CHECK=on")
		var says strings.Builder
		cmd.Stderr = &says
		err := cmd.Run()
		cancel()
		if err != nil {
			return fmt.Errorf("function %s cannot start: %w", f.Name, errors.Join(err, reason(says.String())))
		}
	}
	return nil
}

// reason is what the last line of a log says, nil for nothing.
func reason(log string) error {
	lines := strings.Split(strings.TrimSpace(log), "\n")
	last := lines[len(lines)-1]
	var line struct{ Error string }
	if json.Unmarshal([]byte(last), &line) == nil && line.Error != "" {
		last = line.Error
	}
	if last == "" {
		return nil
	}
	return errors.New(last)
}
