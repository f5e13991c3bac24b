package awsapi

import (
	"net/http"
	"testing"
)

func TestIDsHaveTheFormOfAPIGateway(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		id := NewID()
		if len(id) != 16 || id[15] != '=' || seen[id] {
			t.Fatalf("%q is no new id of API Gateway", id)
		}
		seen[id] = true
	}
}

func TestSourceIPIsTheClients(t *testing.T) {
	for from, want := range map[string]string{"192.0.2.1:5": "192.0.2.1", "[2001:db8::1]:5": "2001:db8::1", "@": "127.0.0.1", "": "127.0.0.1"} {
		if got := SourceIP(&http.Request{RemoteAddr: from}); got != want {
			t.Errorf("%q: %q, want %q", from, got, want)
		}
	}
}
