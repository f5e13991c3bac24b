package box

import (
	"strconv"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestWhatLeftTheGroupGoesWithItsProcess(t *testing.T) {
	t.Parallel()
	r := newRig(t, "normal", func(s *Server) { s.Mark = t.TempDir() })
	other := r.deliverIn("other", "fork") // the mark of another process
	forked, err := strconv.Atoi(string(r.result(other)))
	commontest.OK(t, err)
	away, err := strconv.Atoi(string(r.result(r.call("1", "leave group", "0"))))
	commontest.OK(t, err)
	commontest.Eventually(t, "the child that left is gone", func() bool { return !commontest.Alive(away) })
	if !commontest.Alive(forked) {
		t.Error("the child of another process is gone too")
	}
}

func TestEachProcessHasAMarkOfItsOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t, "normal", func(s *Server) { s.Mark = "/m" })
	a, b := string(r.result(r.deliverIn("a", "env"))), string(r.result(r.deliverIn("b", "env")))
	if !strings.Contains(a, `"DORMOUSE_PROCESS=/m/1"`) || !strings.Contains(b, `"DORMOUSE_PROCESS=/m/2"`) {
		t.Errorf("%s\n%s", a, b)
	}
}
