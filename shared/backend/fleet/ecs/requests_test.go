package ecs

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
)

// says answers each request with a status and a body, and keeps the last request.
type says struct {
	status int
	body   string
	asked  []*http.Request
}

func (s *says) Do(r *http.Request) (*http.Response, error) {
	s.asked = append(s.asked, r)
	return &http.Response{StatusCode: s.status, Header: http.Header{"X-Amzn-Requestid": {"req-1"}}, Body: io.NopCloser(strings.NewReader(s.body))}, nil
}

func TestRequestsAreThoseOfTheRegion(t *testing.T) {
	for region, host := range map[string]string{"eu-west-1": "ecs.eu-west-1.amazonaws.com", "cn-north-1": "ecs.cn-north-1.amazonaws.com.cn"} {
		t.Run(region, func(t *testing.T) {
			s := &says{status: http.StatusOK, body: `{"taskArns":[]}`}
			x := open(t, nil, func(c *Config) { c.Region, c.HTTPClient, c.Endpoint = region, s, "https://"+host })
			if err := x.Stop(t.Context(), "ecs/a", "idle"); err != nil || len(s.asked) != 1 {
				t.Fatal(err, len(s.asked))
			}
			r := s.asked[0]
			signed := r.Header.Get("Authorization")
			if want := (url.URL{Scheme: "https", Host: host, Path: "/"}); *r.URL != want || r.Header.Get("X-Amz-Target") != "AmazonEC2ContainerServiceV20141113.ListTasks" ||
				r.Header.Get("Content-Type") != "application/x-amz-json-1.1" || !strings.Contains(signed, "/"+region+"/ecs/aws4_request") {
				t.Errorf("%s: %v %v", region, r.URL, r.Header)
			}
		})
	}
}

// An answer that ECS did not write, such as the page of a proxy, counts neither as a
// success nor as a refusal of the task.
func TestAnswersThatAreNotECSs(t *testing.T) {
	for name, test := range map[string]struct {
		says
		times int
		part  string
	}{
		"a page in the place of an answer": {says{status: 200, body: "<html>"}, 1, "cannot be read"},
		"a page of a gateway":              {says{status: 502, body: "<html>"}, attempts, "ECS answered 502"},
		"no right":                         {says{status: 400, body: `{"__type":"com.amazonaws.ecs#AccessDeniedException","message":"no"}`}, 1, "AccessDeniedException: no (request req-1)"},
		"too many requests":                {says{status: 429, body: ``}, attempts, "429"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := test.says
				_, err := open(t, nil, func(c *Config) { c.HTTPClient = &s }).Tasks(t.Context())
				if err == nil || !strings.Contains(err.Error(), test.part) || errors.Is(err, fleet.ErrInvalid) || len(s.asked) != test.times {
					t.Errorf("after %d requests: %v", len(s.asked), err)
				}
			})
		})
	}
}
