// Package scheduler invokes functions once at a later time, even if this program is
// restarted meanwhile. Function programs reach it through the API of Amazon EventBridge
// Scheduler.
package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/awsapi"
)

// Group is the group of all schedules on one machine.
const Group = "dormouse"

// Config describes an [API]. All fields but Logger are required.
type Config struct {
	Folder    string // folder of the schedules; New creates it if missing
	Functions []string
	// Send invokes a function; see API.Send of package lambda.
	Send   func(function string, payload []byte) (done <-chan struct{}, err error)
	Logger *slog.Logger // may be nil
}

// API is the part of Amazon EventBridge Scheduler that Dormouse uses, for schedules that
// invoke a function once:
//
//	POST   /schedules/<name>                   CreateSchedule
//	DELETE /schedules/<name>?groupName=<name>  DeleteSchedule
//
// It accepts only at(...) in UTC, to the second, in the future, without a flexible window,
// deleted after completion, in the group [Group]. It refuses what AWS would refuse, with
// AWS's errors: ValidationException 400, ConflictException 409, ResourceNotFoundException
// 404.
//
// A schedule is a file until the function has handled its event or the API has given the
// event up. So it outlives this program. If a schedule was due in the meantime, it is due
// at once. API verifies no signature: its server must authenticate the caller.
type API struct {
	cfg Config

	mu    sync.Mutex
	now   func() time.Time // the clock of the machine
	runs  bool             // between Start and Stop
	ended bool             // after Stop
	kept  map[string]*oneTime
	timer *time.Timer    // nil while no schedule waits
	work  sync.WaitGroup // events in work
}

var _ http.Handler = (*API)(nil)

// oneTime is a schedule in the form of the API and of its file.
type oneTime struct {
	ClientToken                string `json:",omitempty"`
	GroupName                  string
	ScheduleExpression         string
	ScheduleExpressionTimezone string
	FlexibleTimeWindow         struct{ Mode string }
	ActionAfterCompletion      string
	Target                     struct{ Arn, RoleArn, Input string }

	at   time.Time
	sent bool // its event is in work
}

// lookEvery is how often the API looks at the clock while a schedule waits. Timers stand
// still while the machine sleeps, so the API uses no longer timer.
const lookEvery = 30 * time.Second

const (
	atForm           = "at(2006-01-02T15:04:05)"
	maxScheduleInput = 256 << 10
)

// New reads the schedules of a folder. It sends no event before [API.Start], and the
// API must be closed.
func New(cfg Config) (*API, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	a := &API{cfg: cfg, now: time.Now, kept: map[string]*oneTime{}}
	if err := os.MkdirAll(cfg.Folder, 0o700); err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(cfg.Folder, "*.json"))
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		s := &oneTime{}
		if json.Unmarshal(raw, s) == nil {
			s.at, _ = time.Parse(atForm, s.ScheduleExpression) // zero if it cannot be read
		}
		if s.at.IsZero() {
			cfg.Logger.Warn("a schedule cannot be read, so it is ignored", "file", file)
			continue
		}
		a.kept[strings.TrimSuffix(filepath.Base(file), ".json")] = s
	}
	return a, nil
}

// Start begins to send events. It sends those of due schedules at once.
func (a *API) Start() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.runs = !a.ended
	a.arm()
}

// arm sets the timer for the next due schedule. Called with mu held.
func (a *API) arm() {
	wait, waits := lookEvery, false
	for _, s := range a.kept {
		if !s.sent {
			wait, waits = min(wait, s.at.Sub(a.now())), true
		}
	}
	if a.timer != nil {
		a.timer.Stop()
		a.timer = nil
	}
	if waits && a.runs {
		a.timer = time.AfterFunc(wait, a.look)
	}
}

// look sends the events of all due schedules.
func (a *API) look() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.runs {
		return
	}
	for name, s := range a.kept {
		if !s.sent && !s.at.After(a.now()) {
			s.sent = true
			a.work.Go(func() { a.fire(name, s) })
		}
	}
	a.arm()
}

// fire sends the event of a schedule, and removes the schedule when the event is handled
// or given up.
func (a *API) fire(name string, s *oneTime) {
	function := strings.TrimPrefix(s.Target.Arn, awsapi.FunctionARN(""))
	done, err := a.cfg.Send(function, []byte(s.Target.Input))
	if err != nil {
		return // the receiver is closing; the file stays until the next Start
	}
	<-done
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.ended && a.kept[name] == s {
		a.forget(name)
	}
}

// forget removes a schedule. Called with mu held.
func (a *API) forget(name string) {
	delete(a.kept, name)
	a.arm()
	if err := os.Remove(a.file(name)); err != nil {
		a.cfg.Logger.Warn("a schedule cannot be deleted and will come again", "error", err)
	}
}

func (a *API) file(name string) string { return filepath.Join(a.cfg.Folder, name+".json") }

// Stop ends the sending of events and the removal of schedules. A schedule whose event is
// not handled by now stays for the next Start.
func (a *API) Stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.runs, a.ended = false, true
	a.arm()
}

// Close calls Stop, and waits for the events that are being handled until ctx ends.
func (a *API) Close(ctx context.Context) error {
	a.Stop()
	if err := awsapi.Wait(ctx, &a.work); err != nil {
		return fmt.Errorf("close the schedules: %w", err)
	}
	return nil
}

// Len returns the number of schedules.
func (a *API) Len() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.kept)
}

// ServeHTTP implements [http.Handler].
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, ok := strings.CutPrefix(r.URL.Path, "/schedules/")
	switch {
	case !ok || r.Method != http.MethodPost && r.Method != http.MethodDelete:
		awsapi.Fail(w, http.StatusNotFound, "UnknownOperationException", "")
	case !regexp.MustCompile(`^[0-9a-zA-Z_.-]{1,64}$`).MatchString(name):
		awsapi.Fail(w, http.StatusBadRequest, "ValidationException", "Invalid name")
	case r.Method == http.MethodPost:
		a.create(w, r, name)
	default:
		a.remove(w, r, name)
	}
}

func (a *API) create(w http.ResponseWriter, r *http.Request, name string) {
	raw, err := io.ReadAll(io.LimitReader(r.Body, 2*maxScheduleInput))
	s := &oneTime{}
	if err == nil {
		err = json.Unmarshal(raw, s)
	}
	why := "The request cannot be read"
	if err == nil {
		why = a.check(s)
	}
	if why != "" {
		awsapi.Fail(w, http.StatusBadRequest, "ValidationException", why)
		return
	}
	if s.GroupName != Group {
		awsapi.Fail(w, http.StatusNotFound, "ResourceNotFoundException", "Schedule group "+s.GroupName+" does not exist.")
		return
	}
	old, err := a.put(name, s)
	switch {
	case err != nil:
		a.cfg.Logger.Error("a schedule cannot be kept", "error", err)
		awsapi.Fail(w, http.StatusInternalServerError, "InternalServerException", "")
		return
	case old != nil && (s.ClientToken == "" || old.ClientToken != s.ClientToken):
		awsapi.Fail(w, http.StatusConflict, "ConflictException", "Schedule "+name+" already exists.")
		return
	}
	answer, _ := json.Marshal(map[string]string{"ScheduleArn": "arn:aws:scheduler:local:000000000000:schedule/" + Group + "/" + name}) // strings always encode
	awsapi.JSON(w, http.StatusOK, answer)
}

// check returns why a schedule is refused: AWS would refuse it, or this API does not
// imitate it. It returns "" for a good one.
func (a *API) check(s *oneTime) (why string) {
	at, err := time.Parse(atForm, s.ScheduleExpression)
	s.at = at
	function, ours := strings.CutPrefix(s.Target.Arn, awsapi.FunctionARN(""))
	switch {
	case err != nil || s.ScheduleExpressionTimezone != "UTC":
		return "Invalid Schedule Expression " + s.ScheduleExpression + " in " + s.ScheduleExpressionTimezone + "; at(yyyy-mm-ddThh:mm:ss) in UTC is served here"
	case !s.at.After(time.Now()):
		return "Invalid Schedule Expression " + s.ScheduleExpression + ": it is in the past"
	case len(s.ClientToken) > 64 || s.FlexibleTimeWindow.Mode != "OFF" || s.ActionAfterCompletion != "DELETE":
		return "ClientToken, FlexibleTimeWindow or ActionAfterCompletion is not what is served here"
	case !ours || !slices.Contains(a.cfg.Functions, function) || s.Target.RoleArn == "":
		return "Target is not a function of this machine, or has no role"
	case len(s.Target.Input) > maxScheduleInput || !json.Valid([]byte(s.Target.Input)):
		return "Input must be valid JSON of at most 262144 bytes"
	}
	return ""
}

// write writes the file of a schedule in one step.
func (a *API) write(name string, s *oneTime) error {
	raw, err := json.Marshal(s)
	if err != nil {
		return err
	}
	part := a.file(name) + ".part"
	if err := os.WriteFile(part, raw, 0o600); err != nil {
		return err
	}
	return os.Rename(part, a.file(name))
}

func (a *API) remove(w http.ResponseWriter, r *http.Request, name string) {
	if r.URL.Query().Get("groupName") != Group || !a.Delete(name) {
		awsapi.Fail(w, http.StatusNotFound, "ResourceNotFoundException", "Schedule "+name+" does not exist.")
		return
	}
	awsapi.JSON(w, http.StatusOK, []byte("{}"))
}

// Create stores a schedule that invokes a function with input, which is JSON. The
// schedule is due in the first whole second at or after at, or at once if that has
// passed. An existing schedule of the same name stays unchanged.
func (a *API) Create(name, function string, at time.Time, input string) error {
	s := &oneTime{GroupName: Group, at: at.Add(time.Second - 1).Truncate(time.Second)}
	s.ScheduleExpression = s.at.UTC().Format(atForm)
	s.Target.Arn, s.Target.Input = awsapi.FunctionARN(function), input
	_, err := a.put(name, s)
	return err
}

// Delete removes a schedule. found is false if there is none.
func (a *API) Delete(name string) (found bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.kept[name] == nil {
		return false
	}
	a.forget(name)
	return true
}

// put stores a schedule. If one with its name exists, put changes nothing and returns that
// one as old.
func (a *API) put(name string, s *oneTime) (old *oneTime, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return nil, errors.New("the schedules are closed")
	}
	if old = a.kept[name]; old != nil {
		return old, nil
	}
	if err := a.write(name, s); err != nil {
		return nil, err
	}
	a.kept[name] = s
	a.arm()
	return nil, nil
}
