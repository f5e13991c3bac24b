package native

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Schedules is a [Scheduler]: Amazon EventBridge Scheduler, or what imitates its API
// on one machine. Each alarm is a one-time schedule that deletes itself. It makes the
// two requests that are needed by itself: AWS's client for them would be more of a
// function's program, and of its start, than all else here. Safe for concurrent use.
type Schedules struct{ cfg SchedulesConfig }

// SchedulesConfig says where schedules are kept and what they do. All but Client and
// Sign are needed.
type SchedulesConfig struct {
	Endpoint string `json:"-"`      // https://scheduler.<region>.amazonaws.com
	Group    string `json:"group"`  // that has the schedules
	Target   string `json:"target"` // ARN of the function that is invoked
	Role     string `json:"role"`   // ARN of the role that may invoke it
	// Client sends the requests; nil is one with a limit of 10 s.
	Client *http.Client `json:"-"`
	// Sign proves who sends a request with this body; nil where nobody asks.
	Sign func(ctx context.Context, r *http.Request, body []byte) error `json:"-"`
}

// NewSchedules makes a Schedules. It does not connect to anything.
func NewSchedules(c SchedulesConfig) *Schedules {
	if c.Client == nil {
		c.Client = &http.Client{Timeout: 10 * time.Second}
	}
	return &Schedules{c}
}

// soonest is how far ahead a schedule is at least: one whose time has passed when
// the request arrives is refused.
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

// Schedule implements [Scheduler]. The time is that of the alarm, or the next whole
// second behind it, and at least two seconds from now.
func (s *Schedules) Schedule(ctx context.Context, a Alarm) error {
	input, err := AlarmEvent(a)
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
		ClientToken: session.NewNonce(), GroupName: s.cfg.Group, ScheduleTimezone: "UTC", ActionAfterCompletion: "DELETE",
		ScheduleExpression: "at(" + at.UTC().Format("2006-01-02T15:04:05") + ")",
	}
	body.FlexibleTimeWindow.Mode = "OFF"
	body.Target.Arn, body.Target.RoleArn, body.Target.Input = s.cfg.Target, s.cfg.Role, string(input)
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	// A conflict is the same alarm.
	return s.ask(ctx, http.MethodPost, s.url(a, nil), raw, http.StatusConflict)
}

// Cancel implements [Scheduler].
func (s *Schedules) Cancel(ctx context.Context, a Alarm) error {
	query := url.Values{"groupName": {s.cfg.Group}, "clientToken": {session.NewNonce()}}
	return s.ask(ctx, http.MethodDelete, s.url(a, query), nil, http.StatusNotFound)
}

func (s *Schedules) url(a Alarm, query url.Values) string {
	u := s.cfg.Endpoint + "/schedules/" + url.PathEscape(a.ID())
	if query != nil {
		u += "?" + query.Encode()
	}
	return u
}

// scheduleTries is how often a request is sent that may go better the next time.
const scheduleTries = 4

// ask sends a request, again if need be: its token says that it is the same. fine is
// a status besides 200 that is as good.
func (s *Schedules) ask(ctx context.Context, method, target string, body []byte, fine int) error {
	for try := 1; ; try++ {
		status, text, err := s.send(ctx, method, target, body)
		switch {
		case err == nil && (status == http.StatusOK || status == fine):
			return nil
		case err == nil && status != http.StatusTooManyRequests && status < http.StatusInternalServerError:
			return session.Errorf(session.Unavailable, "the alarm could not be set or taken back").
				Because(fmt.Errorf("%s of a schedule: status %d: %s", method, status, text))
		case try == scheduleTries && err == nil && status == http.StatusTooManyRequests:
			return session.Errorf(session.Busy, "too many alarms are set at once; try again later")
		case try == scheduleTries || ctx.Err() != nil:
			return session.Errorf(session.Unavailable, "the alarm could not be set or taken back; try again").
				Because(fmt.Errorf("%s of a schedule: status %d: %s: %w", method, status, text, err))
		}
		if err := rest(ctx, 50*time.Millisecond<<try); err != nil {
			return session.Errorf(session.Unavailable, "the alarm could not be set or taken back; try again").Because(err)
		}
	}
}

func (s *Schedules) send(ctx context.Context, method, target string, body []byte) (status int, text string, err error) {
	r, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Content-Type", "application/json")
	if s.cfg.Sign != nil {
		if err := s.cfg.Sign(ctx, r, body); err != nil {
			return 0, "", err
		}
	}
	res, err := s.cfg.Client.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = res.Body.Close() }() // it was read
	answer, err := io.ReadAll(io.LimitReader(res.Body, 1<<10))
	return res.StatusCode, string(answer), err
}
