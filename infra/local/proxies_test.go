package local

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// Only a proxy that the operator has named says where a request came from.
func TestOnlyNamedProxiesReportAddresses(t *testing.T) {
	proxies, err := ReadProxies([]string{"127.0.0.1", "10.0.0.0/8", "::ffff:192.0.2.1"})
	commontest.OK(t, err)
	for _, tt := range []struct {
		name, peer string
		reported   []string
		want       string
	}{
		{"named", "127.0.0.1:5", []string{"198.51.100.7"}, "198.51.100.7:0"},
		{"not named", "198.51.100.9:5", []string{"127.0.0.1"}, "198.51.100.9:5"},
		{"client lies", "127.0.0.1:5", []string{"127.0.0.1, 198.51.100.7"}, "198.51.100.7:0"},
		{"client lies in a header of its own", "127.0.0.1:5", []string{"127.0.0.1", "198.51.100.7"}, "198.51.100.7:0"},
		{"behind another", "10.1.2.3:5", []string{"203.0.113.5, 198.51.100.7, 10.9.9.9"}, "198.51.100.7:0"},
		{"as IPv6", "[::ffff:127.0.0.1]:5", []string{"2001:db8::7"}, "[2001:db8::7]:0"},
		{"no address before a proxy", "127.0.0.1:5", []string{"unknown, 10.9.9.9"}, "10.9.9.9:0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
			r.RemoteAddr, r.Header["X-Forwarded-For"] = tt.peer, tt.reported
			got := ""
			proxies.behind(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.RemoteAddr })).ServeHTTP(httptest.NewRecorder(), r)
			if got != tt.want || r.RemoteAddr != tt.peer {
				t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
			}
		})
	}
	for _, text := range []string{"", "proxy.example.com", "10.0.0.0/33", "127.0.0.1:80"} {
		if _, err := ReadProxies([]string{text}); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}
