// Package aws has the region and the account of the imitation of AWS, and errors in the form that
// AWS's SDKs read.
package aws

import (
	"encoding/base64"
	"encoding/json"
	"net/http"

	"github.com/dormouse-mcp/dormouse/infra/local/awsapi"
)

// Region and account in the ARNs of functions.
const (
	Region  = "us-east-1"
	Account = "000000000000"
)

// FunctionARN returns the ARN of a function that the emulator runs.
func FunctionARN(name string) string {
	return "arn:aws:lambda:" + Region + ":" + Account + ":function:" + name
}

// IsID reports whether id has the form of [awsapi.NewID].
func IsID(id string) bool {
	b, err := base64.URLEncoding.DecodeString(id)
	return err == nil && len(b) == 11
}

// Fail answers with an error in the form of the restJson1 protocol, from which
// AWS's SDKs make their error types.
func Fail(w http.ResponseWriter, status int, kind, text string) {
	w.Header().Set("X-Amzn-ErrorType", kind)
	w.Header().Set("X-Amzn-RequestId", awsapi.NewID())
	body, err := json.Marshal(struct {
		Message string `json:"message,omitempty"`
	}{text})
	if err != nil {
		body = []byte("{}")
	}
	awsapi.JSON(w, status, body)
}
