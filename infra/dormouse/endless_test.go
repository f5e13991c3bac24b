package dormouse

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// endless is the endpoint of a server one whose list of tools never ends. cursor returns the
// nextCursor of a page.
func endless(t *testing.T, cursor func(page int) string) string {
	t.Helper()
	pages := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m struct {
			ID     json.RawMessage
			Method string
		}
		if strings.HasPrefix(r.URL.Path, "/api/") {
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte(`{"error":{"code":"forbidden","message":"this key may only call"}}`))
			return
		}
		if json.NewDecoder(r.Body).Decode(&m) != nil || m.ID == nil {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		result := `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"one","version":"1"}}`
		if m.Method == wire.MethodToolsList {
			pages++
			result = fmt.Sprintf(`{"tools":[{"name":"t%d","inputSchema":{"type":"object"}}],"nextCursor":%q}`, pages, cursor(pages))
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(wire.ResultResponse(m.ID, json.RawMessage(result)))
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// Every command that lists stops at a list that never ends, and uses what it has read.
func TestListThatNeverEndsIsGivenUp(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cursor func(page int) string
		pages  int
	}{
		"repeats": {func(int) string { return "8" }, 2},
		"grows":   {func(page int) string { return fmt.Sprint(page) }, wire.MaxPages},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out, said bytes.Buffer
			if code := execute([]string{"tools", "one", "--url", endless(t, c.cursor)}, &terminal{out: &out, err: &said}); code != 0 || strings.Count(out.String(), "\n") != 1+c.pages || !strings.Contains(said.String(), "the list repeats") {
				t.Errorf("tools ends with %d: %s%s", code, out.String(), said.String())
			}
			s, err := (&client{base: endless(t, c.cursor)}).connect(t.Context(), "one", "")
			commontest.OK(t, err)
			defer func() { _ = s.Close() }()
			if _, err := (&callCommand{Server: "one", Tool: "t2"}).find(t.Context(), s); err != nil {
				t.Errorf("a call of a tool that was read: %v", err)
			}
		})
	}
}
