package aws

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/dormouse-mcp/dormouse/infra/local/awsapi"
)

func TestIDsOfConnectionsAreKnownByTheirForm(t *testing.T) {
	if id := awsapi.NewID(); !IsID(id) {
		t.Errorf("%q is taken for none", id)
	}
	for _, no := range []string{"", "nobody", "AAAAAAAAAAAAAAAA", "AAAAAAAAAAA=", "../../../../../=="} {
		if IsID(no) {
			t.Errorf("%q is taken for an id", no)
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
