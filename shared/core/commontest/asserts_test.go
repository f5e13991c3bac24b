package commontest_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// heard is a test that notes its failures. [testing.T.Fatal] does not end it.
type heard struct {
	testing.TB
	said []string
}

func (h *heard) Helper()                      {}
func (h *heard) Error(args ...any)            { h.said = append(h.said, fmt.Sprint(args...)) }
func (h *heard) Errorf(f string, args ...any) { h.said = append(h.said, fmt.Sprintf(f, args...)) }
func (h *heard) Fatal(args ...any)            { h.said = append(h.said, "fatal: "+fmt.Sprint(args...)) }

func (h *heard) Fatalf(f string, args ...any) {
	h.said = append(h.said, "fatal: "+fmt.Sprintf(f, args...))
}

func TestHelpersFailForWhatIsWrongOnly(t *testing.T) {
	no := errors.New("no")
	for name, c := range map[string]struct {
		wrong, right func(testing.TB)
		says         string
	}{
		"OK":              {func(t testing.TB) { commontest.OK(t, no) }, func(t testing.TB) { commontest.OK(t, nil) }, "fatal: no"},
		"OKIn":            {func(t testing.TB) { commontest.OKIn(t, "it", no) }, func(t testing.TB) { commontest.OKIn(t, "it", nil) }, "fatal: it: no"},
		"Check":           {func(t testing.TB) { commontest.Check(t, no) }, func(t testing.TB) { commontest.Check(t, nil) }, "no"},
		"CheckIn":         {func(t testing.TB) { commontest.CheckIn(t, "it", no) }, func(t testing.TB) { commontest.CheckIn(t, "it", nil) }, "it: no"},
		"Equal":           {func(t testing.TB) { commontest.Equal(t, 1, 2) }, func(t testing.TB) { commontest.Equal(t, 1, 1) }, "got 2, want 1"},
		"EqualIn":         {func(t testing.TB) { commontest.EqualIn(t, "it", "a", "b") }, func(t testing.TB) { commontest.EqualIn(t, "it", "a", "a") }, `it: got "b", want "a"`},
		"Same":            {func(t testing.TB) { commontest.Same(t, []int{1}, []int{2}) }, func(t testing.TB) { commontest.Same(t, []int{1}, []int{1}) }, "-want +got:"},
		"SameIn":          {func(t testing.TB) { commontest.SameIn(t, "it", 1, 2) }, func(t testing.TB) { commontest.SameIn(t, "it", 1, 1) }, "it: -want +got:"},
		"Contains":        {func(t testing.TB) { commontest.Contains(t, "it", "x", "ab") }, func(t testing.TB) { commontest.Contains(t, "it", "b", "ab") }, `it: got ab, want it to have "x"`},
		"Contains, no it": {func(t testing.TB) { commontest.Contains(t, "", "x", "ab") }, func(t testing.TB) { commontest.Contains(t, "", "", "ab") }, `got ab, want it to have "x"`},
	} {
		t.Run(name, func(t *testing.T) {
			var wrong, right heard
			c.wrong(&wrong)
			c.right(&right)
			if len(wrong.said) != 1 || !strings.HasPrefix(wrong.said[0], c.says) || right.said != nil {
				t.Errorf("it says %q, want %q, and of what is right %q", wrong.said, c.says, right.said)
			}
		})
	}
}
