package front_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/aws/aws-lambda-go/events"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/dormouse-mcp/dormouse/shared/front"
)

// looked is what of an event is looked at.
func looked(e events.APIGatewayProxyRequest) events.APIGatewayProxyRequest {
	c := e.RequestContext
	return events.APIGatewayProxyRequest{
		Path: e.Path, HTTPMethod: e.HTTPMethod, Body: e.Body, IsBase64Encoded: e.IsBase64Encoded,
		Headers: e.Headers, MultiValueHeaders: e.MultiValueHeaders,
		QueryStringParameters: e.QueryStringParameters, MultiValueQueryStringParameters: e.MultiValueQueryStringParameters,
		RequestContext: events.APIGatewayProxyRequestContext{
			DomainName: c.DomainName, RequestID: c.RequestID, Identity: events.APIGatewayRequestIdentity{SourceIP: c.Identity.SourceIP},
		},
	}
}

// sameEvent compares with what encoding/json makes of an event.
func sameEvent(t *testing.T, raw []byte) {
	t.Helper()
	var want events.APIGatewayProxyRequest
	var got front.Event
	wantErr, err := json.Unmarshal(raw, &want), json.Unmarshal(raw, &got)
	if (wantErr == nil) != (err == nil) {
		t.Fatalf("%s: %v, encoding/json says %v", raw, err, wantErr)
	}
	if d := cmp.Diff(looked(want), looked(got.APIGatewayProxyRequest), cmpopts.EquateEmpty()); err == nil && d != "" {
		t.Errorf("%s (-encoding/json +got):\n%s", raw, d)
	}
}

func eventFiles(t testing.TB) (all [][]byte) {
	t.Helper()
	files, err := filepath.Glob("../../events/http-*.json")
	if err != nil || len(files) == 0 {
		t.Fatal(err, "no events")
	}
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, raw)
	}
	return all
}

func TestAnEventIsDecodedAsEncodingJSONDoes(t *testing.T) {
	for _, raw := range eventFiles(t) {
		sameEvent(t, raw)
	}
	for _, raw := range []string{
		`{}`, `null`, `{"path":null,"headers":null,"multiValueHeaders":null,"body":null,"requestContext":null}`,
		`{"headers":{"a":"\u00e9\n"},"multiValueHeaders":{"a":["x","y"],"b":[],"c":null,"d":["\",\""],"e":["p\\","q"],"f":["]"]}}`,
		`{"path":7}`, `{"headers":[]}`, `{"multiValueHeaders":{"a":"x"}}`, `{"requestContext":{"identity":{"sourceIp":"::1"}}}`,
		`{"p\u0061th":"/x"}`, `[]`, `{"isBase64Encoded":true,"body":"eA=="}`,
	} {
		sameEvent(t, []byte(raw))
	}
}

func TestOtherMembersOfAnEventAreHandedOn(t *testing.T) {
	bad := errors.New("no such thing")
	for raw, want := range map[string]string{
		`{"path":"/x","dormouse":{"a":1}}`: `{"a":1}`,
		`{"p\u0061th":"/x","dormouse":2}`:  `2`, // not as API Gateway writes it
		`{"path":"/x","other":1}`:          ``,
	} {
		var e front.Event
		got := ""
		err := front.DecodeEvent([]byte(raw), &e, func(key string, value json.RawMessage) error {
			switch key {
			case "dormouse":
				got = string(value)
			case "other":
				return bad
			}
			return nil
		})
		if got != want || e.Path != "/x" || (want == "") != errors.Is(err, bad) {
			t.Errorf("%s: %q, path %q, %v", raw, got, e.Path, err)
		}
	}
}

// FuzzEvent: who invokes the function has looked whether it is JSON, but nothing
// depends on that.
func FuzzEvent(f *testing.F) {
	for _, raw := range eventFiles(f) {
		f.Add(raw)
	}
	f.Add([]byte(`{"multiValueHeaders":{"a":["x","y"]},"requestContext":{"requestId":"\u0041"}}`))
	f.Add([]byte(`{"multiValueHeaders":{"a":["`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var e, again front.Event
		err := e.UnmarshalJSON(raw)
		if (again.UnmarshalJSON(raw) == nil) != (err == nil) {
			t.Error("it depends")
		}
	})
}

func BenchmarkEvent(b *testing.B) {
	raw := eventFiles(b)[0]
	b.ReportAllocs()
	for b.Loop() {
		var e front.Event
		if err := e.UnmarshalJSON(raw); err != nil {
			b.Fatal(err)
		}
	}
}
