package box

import (
	"strconv"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestWhatLeftTheGroupGoesWithItsProcess(t *testing.T) {
	r := newRig(t, "normal", func(s *Server) { s.Mark = t.TempDir() })
	other := r.deliverIn("other", "fork") // the mark of another process
	forked, err := strconv.Atoi(string(r.result(other)))
	commontest.OK(t, err)
	away, err := strconv.Atoi(string(r.result(r.call("1", "leave group", "0"))))
	commontest.OK(t, err)
	commontest.Eventually(t, "the child that left is gone", func() bool { return !commontest.Alive(away) })
	commontest.EqualIn(t, "the child of another process is alive", true, commontest.Alive(forked))
}
