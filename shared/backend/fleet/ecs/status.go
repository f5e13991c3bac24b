package ecs

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
)

// EventDetailType is the detail type of the EventBridge events that [TaskEvent] reads.
const EventDetailType = "ECS Task State Change"

// page is the number of tasks that ECS lists and describes in one call.
const page = 100

// Stop implements [fleet.Fleet]. It cuts reason at 255 characters. Stop finds a task only
// when ECS lists it, some seconds after its start, and until then stops nothing.
//
// Errors: fleet.ErrCapacity if the rate of calls is too high, fleet.ErrUnavailable.
func (f *Fleet) Stop(ctx context.Context, id, reason string) error {
	if id == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	token := strings.TrimPrefix(id, Place+"/") // earlier versions made ids without the place
	arns, err := f.list(ctx, listTasks{StartedBy: token})
	if err != nil {
		return err
	}
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "")
	}
	for _, arn := range arns {
		err := f.ask(ctx, "StopTask", stopTask{f.cfg.Cluster, arn, reason}, &struct{}{})
		if err != nil && !refused(err) { // refused means that ECS has forgotten the task meanwhile
			return classify("stop the task", err)
		}
	}
	return nil
}

// Traits implements [fleet.Fleet].
func (f *Fleet) Traits(string) fleet.Traits { return fleet.Traits{Lists: true} }

// Tasks implements [fleet.Fleet]. ECS's lists lag behind by some seconds.
//
// Errors: fleet.ErrCapacity if the rate of calls is too high, fleet.ErrUnavailable.
func (f *Fleet) Tasks(ctx context.Context) ([]fleet.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var arns []string
	// In this order, a task that stops between the two calls is on both lists. In the
	// opposite order it could be on none.
	for _, desired := range []string{"RUNNING", "STOPPED"} {
		some, err := f.list(ctx, listTasks{Desired: desired})
		if err != nil {
			return nil, err
		}
		arns = append(arns, some...)
	}
	slices.Sort(arns)
	var all []task
	for some := range slices.Chunk(slices.Compact(arns), page) {
		var out taken
		if err := f.ask(ctx, "DescribeTasks", describeTasks{f.cfg.Cluster, some}, &out); err != nil {
			return nil, classify("describe tasks", err)
		}
		all = append(all, out.Tasks...) // ECS has forgotten those in out.Failures since they were listed
	}
	slices.SortStableFunc(all, func(a, b task) int { return a.CreatedAt.Compare(b.CreatedAt.Time) })
	list := make([]fleet.Status, 0, len(all))
	for _, t := range all {
		s, ours := t.status()
		old := !s.Stopped.IsZero() && time.Since(s.Stopped) > fleet.Remembered
		if ours && !old {
			list = append(list, s)
		}
	}
	return list, nil
}

// list returns the ARNs of all tasks that match a request, from all pages.
func (f *Fleet) list(ctx context.Context, in listTasks) ([]string, error) {
	in.Cluster, in.Most = f.cfg.Cluster, page
	var arns []string
	for {
		var out listed
		if err := f.ask(ctx, "ListTasks", in, &out); err != nil {
			return nil, classify("list tasks", err)
		}
		arns = append(arns, out.ARNs...)
		if in.Next = out.Next; in.Next == "" {
			return arns, nil
		}
	}
}

// TaskEvent reads the detail of an event with [EventDetailType]. ours is false if a Fleet
// did not start the task. Errors: fleet.ErrInvalid if detail does not describe a task.
func TaskEvent(detail json.RawMessage) (s fleet.Status, ours bool, err error) {
	var t task
	if err := json.Unmarshal(detail, &t); err != nil {
		return s, false, fmt.Errorf("%w: the event does not describe a task: %w", fleet.ErrInvalid, err)
	}
	if t.LastStatus == "" {
		return s, false, fmt.Errorf("%w: the event does not say what became of the task", fleet.ErrInvalid)
	}
	s, ours = t.status()
	return s, ours, nil
}

// moment is a time in the JSON of ECS: a number of seconds in descriptions, a text in events.
type moment struct{ time.Time }

// UnmarshalJSON implements json.Unmarshaler.
func (m *moment) UnmarshalJSON(text []byte) error {
	seconds, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		return m.Time.UnmarshalJSON(text)
	}
	m.Time = time.UnixMilli(int64(math.Round(seconds * 1000))).UTC()
	return nil
}

// task has the fields that descriptions and events share.
type task struct {
	Group              string      `json:"group"`
	StartedBy          string      `json:"startedBy"`
	LastStatus         string      `json:"lastStatus"`
	StopCode           string      `json:"stopCode"`
	StoppedReason      string      `json:"stoppedReason"`
	CreatedAt          moment      `json:"createdAt"`
	StartedAt          moment      `json:"startedAt"`
	ExecutionStoppedAt moment      `json:"executionStoppedAt"`
	StoppedAt          moment      `json:"stoppedAt"`
	Containers         []contained `json:"containers"`
}

type contained struct {
	Name       string `json:"name"`
	LastStatus string `json:"lastStatus"`
	Reason     string `json:"reason"`
	ExitCode   *int32 `json:"exitCode"`
}

func (t task) contained(name string) contained {
	for _, c := range t.Containers {
		if c.Name == name {
			return c
		}
	}
	return contained{}
}

func (t task) runner() contained { return t.contained(container) }

func (t task) status() (s fleet.Status, ours bool) {
	box, server, ours := readGroup(t.Group)
	if !ours || t.StartedBy == "" {
		return fleet.Status{}, false
	}
	s = fleet.Status{
		ID: taskID(t.StartedBy), ClientToken: t.StartedBy, Box: box, Server: server, State: t.state(), Started: t.StartedAt.Time,
	}
	if s.State != fleet.Stopped {
		return s, true
	}
	s.Stopped = t.StoppedAt.Time
	if s.Stopped.IsZero() {
		s.Stopped = t.ExecutionStoppedAt.Time
	}
	s.ExitCode, s.Signal = exit(t.runner().ExitCode)
	s.Reason = t.reason(s)
	return s, true
}

// state returns the state of a task. In DEPROVISIONING the runner may have ended already, while
// ECS removes the network interface for some seconds.
func (t task) state() fleet.State {
	switch t.LastStatus {
	case "STOPPED", "DELETED":
		return fleet.Stopped
	case "DEPROVISIONING":
		if t.runner().LastStatus == "STOPPED" && !t.ExecutionStoppedAt.IsZero() {
			return fleet.Stopped
		}
	case "PROVISIONING", "PENDING", "ACTIVATING":
		return fleet.Pending
	}
	if t.StartedAt.IsZero() && t.LastStatus != "RUNNING" { // the task was stopped before it ran
		return fleet.Pending
	}
	return fleet.Running
}

// exit reads a container's exit code. A code over 128 may stand for the signal that
// ended it. code is nil if the container never ran.
func exit(code *int32) (int, string) {
	if code == nil {
		return -1, ""
	}
	if name := unix.SignalName(syscall.Signal(*code - 128)); name != "" {
		return -1, name
	}
	return int(*code), ""
}

// reason says why a task stopped: the reason given to Stop, else the reason of the
// container or of ECS, else how the runner ended.
func (t task) reason(s fleet.Status) string {
	if t.StopCode == "UserInitiated" && t.StoppedReason != "" {
		return t.StoppedReason
	}
	if why := t.runner().Reason; why != "" {
		return why
	}
	if first := t.contained(fetcher); s.ExitCode < 0 && s.Signal == "" && (first.Reason != "" || first.ExitCode != nil && *first.ExitCode != 0) {
		return "the runner did not come into the box: " + cmp.Or(first.Reason, "the log of the container "+fetcher+" has the cause")
	}
	switch {
	case t.StopCode != "EssentialContainerExited":
		return cmp.Or(t.StoppedReason, "the runner ended in an unknown way")
	case s.Signal != "":
		return "the runner was killed by " + s.Signal
	case s.ExitCode < 0:
		return cmp.Or(t.StoppedReason, "the runner ended in an unknown way")
	}
	return fmt.Sprintf("the runner exited with code %d", s.ExitCode)
}
