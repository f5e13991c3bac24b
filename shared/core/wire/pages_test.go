package wire_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

func TestPagesOfAListAreFollowedToItsEndAndNoFurther(t *testing.T) {
	for name, c := range map[string]struct {
		cursor func(page int) string // nextCursor of a page, from 1; "" for none
		pages  int
		ends   bool
	}{
		"one page":        {func(int) string { return "" }, 1, true},
		"three pages":     {func(n int) string { return []string{"", `"a"`, `"b"`, ""}[n] }, 3, true},
		"null":            {func(int) string { return "null" }, 1, true},
		"repeats":         {func(int) string { return `"8"` }, 2, false},
		"repeats in turn": {func(n int) string { return fmt.Sprintf(`"%d"`, n%3) }, 4, false},
		"grows":           {func(n int) string { return fmt.Sprintf(`"%d"`, n) }, wire.MaxPages, false},
		"repeats escaped": {func(n int) string { return []string{`"a"`, `"\u0061"`}[n%2] }, 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			var pages wire.Pages
			n := 0
			for {
				n++
				page := `{"tools":[]}`
				if next := c.cursor(n); next != "" {
					page = `{"tools":[],"nextCursor":` + next + `}`
				}
				cursor, err := pages.Next(json.RawMessage(page))
				var endless *wire.EndlessList
				if ends := err == nil; ends != c.ends && (cursor == nil || err != nil) || err != nil && !errors.As(err, &endless) {
					t.Errorf("%s: page %d: %s %v", name, n, cursor, err)
				}
				if err != nil || cursor == nil {
					break
				}
			}
			commontest.EqualIn(t, name, c.pages, n)
		})
	}
}
