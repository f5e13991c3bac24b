package remote

import (
	"fmt"
	"testing"
	"time"
)

// A user may leave any number of questions open. Others still answer theirs, and nothing that is
// forgotten stays open.
func TestOpenQuestionsOfAUserCostNoOtherUserTheirs(t *testing.T) {
	c, closed := New(), map[string]bool{}
	keep := func(principal string, n int) {
		for i := range n {
			name := fmt.Sprint(principal, " ", i)
			c.put(name, owner{"acme", principal}, &conversation{stop: func() { closed[name] = true }, flow: &flow{}}, time.Hour)
		}
	}
	keep("bob", 1)
	keep("ada", mostOfOne+1)
	if !closed["ada 0"] || len(closed) != 1 {
		t.Errorf("closed: %v", closed)
	}
	for i := range mostKept / mostOfOne {
		keep(fmt.Sprint("user ", i), mostOfOne)
	}
	kept := 1 + mostOfOne + 1 + mostKept - len(closed)
	if kept != mostKept || c.take("bob 0") == nil {
		t.Errorf("%d are kept; closed: %v", kept, closed)
	}
	if c.Close(); len(closed) != mostOfOne+1+mostKept {
		t.Errorf("%d are closed at the end", len(closed))
	}
}
