package apigw

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/infra/local/awsapi"
	"github.com/dormouse-mcp/dormouse/infra/local/sockets"
)

func TestConnectionsRefusesWhatAWSRefuses(t *testing.T) {
	api := sockets.New(sockets.Config{Name: "mcp", Stage: "prod", Limits: Limits()})
	const signature = "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host, Signature=c"
	id := awsapi.NewID()
	for name, test := range map[string]struct {
		path, auth string
		status     int
		kind       string
	}{
		"not signed":      {"/prod/@connections/" + id, "", 403, "MissingAuthenticationTokenException"},
		"a bearer token":  {"/prod/@connections/" + id, "Bearer x", 403, "MissingAuthenticationTokenException"},
		"no such id":      {"/prod/@connections/nobody", signature, 400, "BadRequestException"},
		"wrong stage":     {"/test/@connections/" + id, signature, 403, "ForbiddenException"},
		"escaped":         {"/prod/%40connections/" + strings.ReplaceAll(id, "=", "%3D"), signature, 410, "GoneException"},
		"not escaped":     {"/prod/@connections/" + id, signature, 410, "GoneException"},
		"other resources": {"/prod/connections", signature, 403, "ForbiddenException"},
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://local"+test.path, strings.NewReader("x"))
			r.Header.Set("Authorization", test.auth)
			r.Header.Set("X-Amz-Date", "20000101T000000Z")
			w := httptest.NewRecorder()
			Connections{"prod": api}.ServeHTTP(w, r)
			if w.Code != test.status || w.Header().Get("X-Amzn-ErrorType") != test.kind {
				t.Errorf("%d %s, want %d %s", w.Code, w.Header().Get("X-Amzn-ErrorType"), test.status, test.kind)
			}
		})
	}
}
