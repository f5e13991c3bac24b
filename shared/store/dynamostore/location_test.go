package dynamostore

import (
	"context"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func TestPlaceIsReadAsItIsWritten(t *testing.T) {
	for text, want := range map[string]Location{
		"dormouse":                 {Table: "dormouse", Region: "eu-west-1"},
		"a.b_c-1?region=us-east-2": {Table: "a.b_c-1", Region: "us-east-2"},
		"dormouse?endpoint=http://127.0.0.1:8000":                {Table: "dormouse", Region: "eu-west-1", Endpoint: "http://127.0.0.1:8000"},
		"dormouse?endpoint=https%3A%2F%2Fdb.example%2F&region=r": {Table: "dormouse", Region: "r", Endpoint: "https://db.example/"},
	} {
		t.Run(text, func(t *testing.T) {
			got, err := ParseLocation(text, "eu-west-1")
			if diff := cmp.Diff(want, got); err != nil || diff != "" {
				t.Errorf("%s: %v (-want +got):\n%s", text, err, diff)
			}
			again, err := ParseLocation(got.String(), "")
			if diff := cmp.Diff(got, again); err != nil || diff != "" {
				t.Errorf("%s written as %s: %v (-want +got):\n%s", text, got, err, diff)
			}
		})
	}
}

func TestMissingTableIsMadeAtAnEndpoint(t *testing.T) {
	p := Location{Table: "t" + storage.NewNonce(), Region: "us-east-1", Endpoint: endpoint(t)}
	keys := Keys{ID: "local", Secret: "local"}
	c := p.Client(keys, nil)
	t.Cleanup(func() {
		_, err := c.DeleteTable(context.WithoutCancel(t.Context()), &dynamodb.DeleteTableInput{TableName: &p.Table})
		commontest.Check(t, err)
	})
	for range 2 { // the second time it is there
		commontest.OK(t, p.EnsureTable(t.Context(), keys))
	}
	s := New(c, p.Table, Options{Patience: time.Minute})
	commontest.Check(t, s.Create(t.Context(), storage.Session{ID: storage.NewID(), Tenant: "acme", Expires: time.Now().Add(time.Hour)}))
	ttl, err := c.DescribeTimeToLive(t.Context(), &dynamodb.DescribeTimeToLiveInput{TableName: &p.Table})
	if err != nil || ttl.TimeToLiveDescription == nil || *ttl.TimeToLiveDescription.AttributeName != "x" {
		t.Errorf("the table deletes by %+v, %v, want by x", ttl, err)
	}
}
