// Package eventbridge keeps the alarms of native servers in Amazon EventBridge
// Scheduler.
//
// Each alarm is a one-time schedule that deletes itself. The package sends the two requests that it
// needs without AWS's client, which would make Lambda functions larger and slower to start.
package eventbridge

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/awscall"
	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Scheduler is a native.Scheduler, which says where schedules are kept and what they do. All fields
// are required. It is safe for concurrent use.
type Scheduler struct {
	Service awscall.Service `json:"-"`      // EventBridge Scheduler
	Group   string          `json:"group"`  // name of the schedule group
	Target  string          `json:"target"` // ARN of the function that is invoked
	Role    string          `json:"role"`   // ARN of the role that may invoke it
}

// soonest is the least time from now to a schedule. The API refuses a schedule whose time
// has passed when the request arrives.
const soonest = 2 * time.Second

// schedule is the body of CreateSchedule.
type schedule struct {
	ClientToken           string
	GroupName             string
	ScheduleExpression    string
	ScheduleTimezone      string `json:"ScheduleExpressionTimezone"`
	FlexibleTimeWindow    struct{ Mode string }
	ActionAfterCompletion string
	Target                struct{ Arn, RoleArn, Input string }
}

// Schedule implements native.Scheduler. The schedule is for the alarm's time, rounded up to
// a whole second, and at least two seconds from now.
func (s *Scheduler) Schedule(ctx context.Context, a native.Alarm) error {
	input, err := native.AlarmEvent(a)
	if err != nil {
		return err
	}
	at := a.At
	if least := time.Now().Add(soonest); at.Before(least) {
		at = least
	}
	if whole := at.Truncate(time.Second); whole.Before(at) {
		at = whole.Add(time.Second)
	}
	body := schedule{
		ClientToken: storage.NewNonce(), GroupName: s.Group, ScheduleTimezone: "UTC", ActionAfterCompletion: "DELETE",
		ScheduleExpression: "at(" + at.UTC().Format("2006-01-02T15:04:05") + ")",
	}
	body.FlexibleTimeWindow.Mode = "OFF"
	body.Target.Arn, body.Target.RoleArn, body.Target.Input = s.Target, s.Role, string(input)
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	// A conflict means that the alarm is set already.
	return s.ask(ctx, http.MethodPost, s.url(a, nil), raw, http.StatusConflict)
}

// Cancel implements native.Scheduler.
func (s *Scheduler) Cancel(ctx context.Context, a native.Alarm) error {
	query := url.Values{"groupName": {s.Group}, "clientToken": {storage.NewNonce()}}
	return s.ask(ctx, http.MethodDelete, s.url(a, query), nil, http.StatusNotFound)
}

func (s *Scheduler) url(a native.Alarm, query url.Values) string {
	u := s.Service.Endpoint + "/schedules/" + url.PathEscape(a.ID())
	if query != nil {
		u += "?" + query.Encode()
	}
	return u
}

// tries limits the attempts at a request that failed and may succeed later.
const tries = 4

// ask sends a request, and repeats it after a temporary failure. The client token in the request
// tells AWS that the repeated request is the same one. okStatus counts as success, besides 200.
func (s *Scheduler) ask(ctx context.Context, method, target string, body []byte, okStatus int) error {
	q := awscall.Request{Method: method, URL: target, Body: body, Header: http.Header{"Content-Type": {"application/json"}}}
	for try := 1; ; try++ {
		a, err := s.Service.Do(ctx, q, 1<<10)
		if err == nil && (a.Status == http.StatusOK || a.Status == okStatus) {
			return nil
		}
		busy := a.Status == http.StatusTooManyRequests
		passes := err != nil || busy || a.Status >= http.StatusInternalServerError
		if passes && try < tries && storage.Rest(ctx, 50*time.Millisecond<<try) == nil {
			continue
		}
		if err == nil {
			err = fmt.Errorf("%s of a schedule: status %d: %s", method, a.Status, a.Body)
		}
		switch {
		case busy:
			return storage.Errorf(storage.Busy, "too many alarms are set at once; try again later").Because(err)
		case passes:
			return storage.Errorf(storage.Unavailable, "the alarm could not be set or cancelled; try again").Because(err)
		}
		return storage.Errorf(storage.Unavailable, "the alarm could not be set or cancelled").Because(err)
	}
}
