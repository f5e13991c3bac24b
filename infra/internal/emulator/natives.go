package emulator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/internal/emulator/aws"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
)

// program returns the path of a function's program: the author's own, if it has the native
// servers.
func (e *emulated) program(name string) string {
	if e.Own != "" && (name == "http" || name == "socket") {
		return e.Own
	}
	return filepath.Join(e.Programs, name)
}

// checkTime is the longest time for one start of a function that only checks whether
// it can start.
const checkTime = 30 * time.Second

// checkNatives starts the functions to check that they contain the native servers that
// the servers file names. So the operator learns of a missing server at the start, not at
// the first message.
func (e *emulated) checkNatives(ctx context.Context, servers *serversfile.File, env []string) error {
	if !slices.ContainsFunc(servers.Names(), func(name string) bool {
		s, _ := servers.Server(name)
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
		cmd.Env = append(slices.Concat(env, f.Env), "_HANDLER="+f.Name, e.tells(true),
			"AWS_REGION="+aws.Region, "AWS_ACCESS_KEY_ID=local", "AWS_SECRET_ACCESS_KEY=local") // as an instance has
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

// reason returns the last line of a log as an error, or nil for an empty log.
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
