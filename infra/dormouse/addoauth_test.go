package dormouse

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// TestAddFindsOutWhereUsersSignIn adds a server that requires a token. It uses the
// metadata of the server and of its authorization server.
func TestAddFindsOutWhereUsersSignIn(t *testing.T) {
	var registered map[string]any
	mux := http.NewServeMux()
	far := httptest.NewServer(mux)
	defer far.Close()
	answer := func(w http.ResponseWriter, status int, v any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(v)
	}
	mux.HandleFunc("/mcp", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", `Bearer resource_metadata="`+far.URL+`/of-mcp", scope="read"`)
		w.WriteHeader(http.StatusUnauthorized)
	})
	mux.HandleFunc("/of-mcp", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]any{
			"resource": far.URL + "/mcp", "authorization_servers": []string{far.URL}, "scopes_supported": []string{"read"}, "resource_name": "Tracker",
		})
	})
	mux.HandleFunc("/.well-known/oauth-authorization-server", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]any{
			"issuer": far.URL, "authorization_endpoint": far.URL + "/authorize", "token_endpoint": far.URL + "/token", "registration_endpoint": far.URL + "/register",
			"response_types_supported": []string{"code"}, "code_challenge_methods_supported": []string{"S256"},
		})
	})
	mux.HandleFunc("/register", func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewDecoder(r.Body).Decode(&registered)
		answer(w, http.StatusCreated, map[string]any{"client_id": "id-of-ours", "redirect_uris": registered["redirect_uris"]})
	})
	s := newShell(t)
	s.file("servers.json", `{"mcpServers": {}}`)
	printed, code := s.run("add tracker " + far.URL + "/mcp --oauth --public-url https://mcp.example.com --private --servers $DATA/servers.json")
	if code != 0 || !strings.Contains(printed, "https://mcp.example.com/connect?server=tracker") {
		t.Fatalf("%d: %s", code, printed)
	}
	var got struct {
		Servers map[string]struct {
			Headers map[string]string `json:"headers"`
		} `json:"mcpServers"`
		Ours struct {
			Connect map[string]map[string]any `json:"connect"`
		} `json:"x-dormouse"`
	}
	text, err := os.ReadFile(filepath.Join(s.data, "servers.json"))
	commontest.OK(t, err)
	commontest.OK(t, json.Unmarshal(text, &got))
	p := got.Ours.Connect["tracker"]
	if got.Servers["tracker"].Headers["Authorization"] != "Bearer ${principal:tracker}" || p["client_id"] != "id-of-ours" || p["resource"] != far.URL+"/mcp" ||
		p["authorize"] != far.URL+"/authorize" || p["token"] != far.URL+"/token" || p["issuer"] != far.URL || p["title"] != "Tracker" {
		t.Errorf("%s", text)
	}
	if list, _ := registered["redirect_uris"].([]any); len(list) != 1 || list[0] != "https://mcp.example.com/connected" {
		t.Errorf("registered: %v", registered)
	}
}
