package runner

import (
	"errors"
	"fmt"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/box/runner"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func TestExitCodeSaysWhyTheRunnerEnded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want int
	}{
		{storage.Errorf(runner.ErrFenced, "somebody newer"), 3},
		{fmt.Errorf("run: %w", storage.Errorf(storage.Unavailable, "no host")), 4},
		{storage.Errorf(storage.Invalid, "refused"), 1},
		{errors.New("no folder"), 1},
	} {
		commontest.Equal(t, c.want, ExitCode(c.err))
	}
}
