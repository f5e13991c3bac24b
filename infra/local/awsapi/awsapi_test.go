package awsapi

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestIDsHaveTheFormOfAPIGateway(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		id := NewID()
		if len(id) != 16 || id[15] != '=' || !IsID(id) || seen[id] {
			t.Fatalf("%q is no new id of API Gateway", id)
		}
		seen[id] = true
	}
	for _, no := range []string{"", "nobody", "AAAAAAAAAAAAAAAA", "AAAAAAAAAAA=", "../../../../../=="} {
		if IsID(no) {
			t.Errorf("%q is taken for an id", no)
		}
	}
}

func TestSourceIPIsTheClients(t *testing.T) {
	for from, want := range map[string]string{"192.0.2.1:5": "192.0.2.1", "[2001:db8::1]:5": "2001:db8::1", "@": "127.0.0.1", "": "127.0.0.1"} {
		if got := SourceIP(&http.Request{RemoteAddr: from}); got != want {
			t.Errorf("%q: %q, want %q", from, got, want)
		}
	}
}

func TestErrorsHaveTheFormThatSDKsRead(t *testing.T) {
	for text, want := range map[string]string{`a "reason"`: `{"message":"a \"reason\""}`, "": "{}"} {
		w := httptest.NewRecorder()
		Fail(w, http.StatusGone, "GoneException", text)
		if w.Code != http.StatusGone || w.Header().Get("X-Amzn-ErrorType") != "GoneException" || w.Header().Get("Content-Type") != "application/json" ||
			!IsID(w.Header().Get("X-Amzn-RequestId")) || w.Body.String() != want {
			t.Errorf("%d %v %s, want %s", w.Code, w.Header(), w.Body, want)
		}
	}
}
