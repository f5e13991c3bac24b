package buckettest

import (
	"encoding/hex"
	"net/http"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// This is the example of the S3 reference, "Authenticating Requests: Using Query
// Parameters".
func TestSignsAsTheReferenceDoes(t *testing.T) {
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		"https://examplebucket.s3.amazonaws.com/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256"+
			"&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request"+
			"&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host", http.NoBody)
	commontest.OK(t, err)
	text := toSign("20130524T000000Z", "20130524/us-east-1/s3/aws4_request", canonical(r, r.URL.Query(), []string{"host"}, "UNSIGNED-PAYLOAD"))
	got := hex.EncodeToString(sign("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "20130524", "us-east-1", "s3", text))
	if want := "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
