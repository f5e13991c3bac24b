package emulator

import (
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/internal/emulator/aws"
	"github.com/dormouse-mcp/dormouse/infra/local/awsapi"
	"github.com/dormouse-mcp/dormouse/infra/local/scheduler"
)

const (
	maxScheduleInput = 256 << 10
	scheduleGroup    = "dormouse"
)

// schedules is the part of Amazon EventBridge Scheduler that Dormouse uses, for schedules that
// invoke the http function once:
//
//	POST   /schedules/<name>                   CreateSchedule
//	DELETE /schedules/<name>?groupName=<name>  DeleteSchedule
//
// It accepts only schedules at(...) in UTC, to the second and in the future. Schedules must have no
// flexible window, be deleted after completion, and be in the group [scheduleGroup]. Errors are
// those of AWS. schedules does not verify the signatures of requests: the server that serves it
// must authenticate callers.
type schedules struct {
	*scheduler.API

	mu     sync.Mutex
	tokens map[string]string // the ClientToken of each schedule that was created, by the name of the schedule
}

type schedule struct {
	ClientToken                string
	GroupName                  string
	ScheduleExpression         string
	ScheduleExpressionTimezone string
	FlexibleTimeWindow         struct{ Mode string }
	ActionAfterCompletion      string
	Target                     struct{ Arn, RoleArn, Input string }
}

// ServeHTTP implements [http.Handler].
func (s *schedules) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, ok := strings.CutPrefix(r.URL.Path, "/schedules/")
	switch {
	case !ok || r.Method != http.MethodPost && r.Method != http.MethodDelete:
		aws.Fail(w, http.StatusNotFound, "UnknownOperationException", "")
	case !regexp.MustCompile(`^[0-9a-zA-Z_.-]{1,64}$`).MatchString(name):
		aws.Fail(w, http.StatusBadRequest, "ValidationException", "Invalid name")
	case r.Method == http.MethodPost:
		s.create(w, r, name)
	case r.URL.Query().Get("groupName") != scheduleGroup || !s.Delete(name):
		aws.Fail(w, http.StatusNotFound, "ResourceNotFoundException", "Schedule "+name+" does not exist.")
	default:
		awsapi.JSON(w, http.StatusOK, []byte("{}"))
	}
}

func (s *schedules) create(w http.ResponseWriter, r *http.Request, name string) {
	var of schedule
	raw, err := io.ReadAll(io.LimitReader(r.Body, 2*maxScheduleInput))
	if err == nil {
		err = json.Unmarshal(raw, &of)
	}
	if err != nil {
		aws.Fail(w, http.StatusBadRequest, "ValidationException", "The request cannot be read")
		return
	}
	at, why := of.check()
	switch {
	case why != "":
		aws.Fail(w, http.StatusBadRequest, "ValidationException", why)
		return
	case of.GroupName != scheduleGroup:
		aws.Fail(w, http.StatusNotFound, "ResourceNotFoundException", "Schedule group "+of.GroupName+" does not exist.")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	created, err := s.Create(name, at, of.Target.Input)
	switch {
	case err != nil:
		aws.Fail(w, http.StatusInternalServerError, "InternalServerException", "")
		return
	case !created && (of.ClientToken == "" || s.tokens[name] != of.ClientToken):
		aws.Fail(w, http.StatusConflict, "ConflictException", "Schedule "+name+" already exists.")
		return
	}
	s.tokens[name] = of.ClientToken
	answer, _ := json.Marshal(map[string]string{"ScheduleArn": "arn:aws:scheduler:local:000000000000:schedule/" + scheduleGroup + "/" + name}) // a map of strings always marshals
	awsapi.JSON(w, http.StatusOK, answer)
}

// check returns the time of a schedule, and why it is refused: AWS would refuse it too, or this
// imitation does not have what it asks for. The result why is "" for a good schedule.
func (s *schedule) check() (at time.Time, why string) {
	at, err := time.Parse("at(2006-01-02T15:04:05)", s.ScheduleExpression)
	switch {
	case err != nil || s.ScheduleExpressionTimezone != "UTC":
		why = "Invalid Schedule Expression " + s.ScheduleExpression + " in " + s.ScheduleExpressionTimezone + "; at(yyyy-mm-ddThh:mm:ss) in UTC is served here"
	case !at.After(time.Now()):
		why = "Invalid Schedule Expression " + s.ScheduleExpression + ": it is in the past"
	case len(s.ClientToken) > 64 || s.FlexibleTimeWindow.Mode != "OFF" || s.ActionAfterCompletion != "DELETE":
		why = "ClientToken, FlexibleTimeWindow or ActionAfterCompletion is not what is served here"
	case s.Target.Arn != aws.FunctionARN("http") || s.Target.RoleArn == "":
		why = "Target is not a function of this machine, or has no role"
	case len(s.Target.Input) > maxScheduleInput || !json.Valid([]byte(s.Target.Input)):
		why = "Input must be valid JSON of at most 262144 bytes"
	}
	return at, why
}
