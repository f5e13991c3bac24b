package main

import "testing"

func TestFewArrowsPointBackInTheBestOrder(t *testing.T) {
	for name, c := range map[string]struct {
		arrows [][2]int
		back   int
	}{
		"a chain against the order": {[][2]int{{3, 2}, {2, 1}, {1, 0}}, 0},
		"a circle":                  {[][2]int{{0, 1}, {1, 2}, {2, 3}, {3, 0}}, 1},
		"two circles":               {[][2]int{{0, 1}, {1, 0}, {2, 3}, {3, 2}, {0, 3}}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			uses := make([][]bool, 4)
			for i := range uses {
				uses[i] = make([]bool, 4)
			}
			for _, a := range c.arrows {
				uses[a[0]][a[1]] = true
			}
			if got := pointBack(uses); got != c.back {
				t.Errorf("%s: %d arrows point back, want %d", name, got, c.back)
			}
		})
	}
}
