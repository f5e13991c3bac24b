package dormouse

import "testing"

func TestDifferenceOfLines(t *testing.T) {
	for _, c := range []struct{ name, before, after, want string }{
		{"new file", "", "a\nb\n", "+ a\n+ b\n"},
		{"two places", "a\n1\n2\n3\n4\n5\nb\n", "x\n1\n2\n3\n4\n5\ny\n", "- a\n+ x\n  1\n  2\n  ⋮\n  4\n  5\n- b\n+ y\n"},
		{"repeated lines", "a\n}\n}\n", "a\n}\nb\n}\n}\n", "  a\n  }\n+ b\n+ }\n  }\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := lineDiff(c.before, c.after); got != c.want {
				t.Errorf("%s:\n%s", c.name, got)
			}
		})
	}
}
