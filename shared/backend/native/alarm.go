package native

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Alarm is the time at which an author's handler is called ([Session.WakeAt]), or at which a
// paused call goes on. An alarm that comes twice, late or without need does no harm, because
// the store says what is due.
type Alarm struct {
	Session storage.ID `json:"session"`
	Tenant  string     `json:"tenant"`
	Server  string     `json:"server"`
	// Name is the name that the author gave it, at most [MaxAlarmName] bytes.
	Name string `json:"name,omitempty"`
	// Stream names the call that pauses, and Round is how often the call was suspended; "" and 0
	// for an author's alarm.
	Stream storage.StreamID `json:"stream,omitempty"`
	Round  int              `json:"round,omitempty"`
	At     time.Time        `json:"at"`
	// Payload is the author's, JSON of at most [MaxAlarmPayload] bytes. A scheduler does not
	// get the payload.
	Payload json.RawMessage `json:"-"`
}

// Bounds of an author's alarm, in bytes.
const (
	MaxAlarmName    = 120
	MaxAlarmPayload = 64 << 10
)

// Scheduler invokes the Lambda function for HTTP with [AlarmEvent] when an alarm is due: at least
// once, and not before At. It keeps alarms even while no instance runs. It is safe for
// concurrent use.
type Scheduler interface {
	// Schedule keeps an alarm. Scheduling the same [Alarm.ID] again is no error. An alarm
	// whose time has passed is due at once. Errors: Busy, Unavailable.
	Schedule(ctx context.Context, a Alarm) error
	// Cancel forgets the alarm with this ID, if there is one. A cancelled alarm may still
	// come. Errors: Busy, Unavailable.
	Cancel(ctx context.Context, a Alarm) error
}

// ID names an alarm to a scheduler: 32 characters, a to v and 0 to 9. The ID depends on the
// time of the alarm: a scheduler that deletes an executed schedule late must not delete the
// next alarm with the same name.
func (a Alarm) ID() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %q %q %d %d", a.Tenant, a.Server, a.Session, a.Stream, a.Name, a.Round, a.At.UnixMilli()))
	return strings.ToLower(base32.HexEncoding.EncodeToString(sum[:20]))
}

// alarmEvent is the event with which a scheduler invokes the Lambda function. No event of API
// Gateway has a member of this name at its top.
type alarmEvent struct {
	Alarm *Alarm `json:"dormouseAlarm"`
}

// AlarmEvent returns the payload with which to invoke the Lambda function for HTTP when an alarm
// is due: JSON of a few hundred bytes at most.
func AlarmEvent(a Alarm) ([]byte, error) { return json.Marshal(alarmEvent{&a}) }

// ReadAlarm reads an [AlarmEvent]; ok is false for any other event.
func ReadAlarm(event []byte) (a Alarm, ok bool) {
	var e alarmEvent
	if json.Unmarshal(event, &e) != nil || e.Alarm == nil || e.Alarm.Session == "" {
		return Alarm{}, false
	}
	return *e.Alarm, true
}

// alarmPrefix begins the names of the values in which alarms are kept, in the scope of
// their session.
const alarmPrefix = "\x00alarm:"

// maxAlarmTries is how often a handler is called for an alarm, if each call fails.
const maxAlarmTries = 3

// schedule is the durable value of an author's alarm.
type schedule struct {
	At      time.Time       `json:"at"`
	Payload json.RawMessage `json:"payload,omitempty"`
	Until   time.Time       `json:"until,omitzero"`  // end of the lease of the instance that handles the alarm, or zero
	Tries   int             `json:"tries,omitempty"` // how often the handler was called
}

// OnAlarm sets the handler of this session's alarms. Call it in [Server], which runs for an
// alarm as for a message. One instance at a time handles an alarm. If the handler fails, or
// its instance dies, the handler is called again, up to three times in all.
func (s Session) OnAlarm(handle func(ctx context.Context, a Alarm) error) { s.in.onAlarm = handle }

// WakeAt has the handler of [Session.OnAlarm] called at the given time or soon after (on AWS within
// a minute). The call comes even if no instance runs, or if the program was deployed anew. payload
// is kept as JSON and may be nil. WakeAt replaces an alarm with the same name. An alarm whose
// session has ended or expired is not handled.
//
// Errors: storage.Invalid (a name that is not 1 to 120 bytes long), storage.TooLarge (a
// payload over 64 KiB), storage.Busy, storage.Unavailable. A payload that cannot be
// encoded gives an error of encoding/json.
func (s Session) WakeAt(ctx context.Context, name string, at time.Time, payload any) error {
	if s.in.k.Schedule == nil {
		return storage.Errorf(storage.Unavailable, "this endpoint keeps no alarms: its operator has not configured a scheduler")
	}
	if name == "" || len(name) > MaxAlarmName {
		return storage.Errorf(storage.Invalid, "the name of an alarm has %d bytes; it needs 1 to %d", len(name), MaxAlarmName)
	}
	raw, err := json.Marshal(payload)
	if err != nil {
		return err
	}
	if len(raw) > MaxAlarmPayload {
		return storage.Errorf(storage.TooLarge, "the payload of alarm %q has %d bytes; at most %d are kept", name, len(raw), MaxAlarmPayload)
	}
	if now := time.Now(); at.Before(now) {
		at = now
	}
	next := schedule{At: at.UTC().Truncate(time.Millisecond), Payload: raw}
	was, err := s.setSchedule(ctx, name, &next)
	if err != nil {
		return err
	}
	if err := s.in.k.Schedule.Schedule(ctx, s.alarm(name, next)); err != nil {
		return err
	}
	return s.unschedule(ctx, name, was, next)
}

// CancelWake forgets an alarm, if there is one. It does not stop a handler that is
// running.
//
// Errors: storage.Invalid, storage.Busy, storage.Unavailable.
func (s Session) CancelWake(ctx context.Context, name string) error {
	was, err := s.setSchedule(ctx, name, nil)
	if err != nil {
		return err
	}
	return s.unschedule(ctx, name, was, schedule{})
}

// setSchedule writes the value of an alarm, or deletes it if next is nil. It returns the
// previous value.
func (s Session) setSchedule(ctx context.Context, name string, next *schedule) (was schedule, err error) {
	state := s.State(OfSession)
	err = amongOthers(ctx, func() (err error) {
		var v storage.Value
		if v, was, err = s.schedule(ctx, name); err != nil {
			return err
		}
		if next != nil {
			_, err = state.save(ctx, v, next)
		} else if v.Rev != 0 {
			_, err = state.save(ctx, v, nil)
		}
		return err
	})
	return was, err
}

// schedule reads the value of an alarm. v.Rev is 0 if there is none.
func (s Session) schedule(ctx context.Context, name string) (v storage.Value, a schedule, err error) {
	state := s.State(OfSession)
	if v, err = state.store.LoadValue(ctx, state.own(alarmPrefix+name)); err == nil && v.Rev != 0 {
		err = json.Unmarshal(v.Data, &a)
	}
	return v, a, err
}

// unschedule makes the scheduler forget the alarm old, which the author has cancelled or replaced
// by next. It does nothing if next has the same time. If the process dies before unschedule has
// ended, the old alarm comes and has no effect.
func (s Session) unschedule(ctx context.Context, name string, old, next schedule) error {
	if s.in.k.Schedule == nil || old.At.IsZero() || old.At.Equal(next.At) || old.At.Before(time.Now()) {
		return nil
	}
	return s.in.k.Schedule.Cancel(ctx, s.alarm(name, old))
}

func (s Session) alarm(name string, a schedule) Alarm {
	r := s.in.record
	return Alarm{Session: r.ID, Tenant: r.Tenant, Server: r.Server, Name: name, At: a.At, Payload: a.Payload}
}

// ring handles an author's alarm that has come. It does nothing if the alarm does not exist any more,
// and schedules it again if it is not due yet. After an error the alarm must come again. If another
// instance handles the alarm, ring waits until the lease of that instance ends, and looks once more:
// the other instance may be dead, and the scheduler may not send the alarm again.
func (k *Backend) ring(ctx context.Context, a Alarm) error {
	held, err := k.ringOnce(ctx, a)
	if err == nil && !held.IsZero() {
		if err = storage.Rest(ctx, time.Until(held)); err == nil {
			held, err = k.ringOnce(ctx, a)
		}
	}
	if err == nil && !held.IsZero() {
		err = storage.Errorf(storage.Busy, "alarm %q is being handled already; it comes again if that fails", a.Name)
	}
	return err
}

// ringOnce is ring for callers that do not wait for another instance. held is when the lease of
// that instance ends, zero if no other instance handles the alarm.
func (k *Backend) ringOnce(ctx context.Context, a Alarm) (held time.Time, err error) {
	record, _, err := k.Store.Load(ctx, a.Session, "")
	switch {
	case errors.Is(err, storage.NotFound), err == nil && (record.State == storage.Ended || record.Tenant != a.Tenant || record.Server != a.Server):
		return held, nil
	case err != nil:
		return held, err
	}
	hosted, ok := k.Servers(record.Server)
	if !ok || hosted.Make == nil {
		k.Log.WarnContext(ctx, "alarm of a server that is not configured any more", "server", record.Server, "session_id", record.ID, "alarm", a.Name)
		return held, nil
	}
	in := &environment{k: k, record: record, server: hosted, init: record.Init, extra: extraOf(record, nil)}
	s := Session{in}
	v, due, err := s.schedule(ctx, a.Name)
	if err != nil || v.Rev == 0 {
		return held, err
	}
	now := time.Now()
	switch {
	case !due.At.Equal(a.At):
		// Another alarm has replaced a. The instance that set the new alarm may have died before it
		// scheduled that alarm.
		return held, k.schedule(ctx, s.alarm(a.Name, due))
	case due.At.After(now.Add(early)):
		return held, k.schedule(ctx, a)
	case due.Until.After(now):
		return due.Until, nil
	case due.Tries >= maxAlarmTries: // the instance that made the last try has died
		k.Log.WarnContext(ctx, "alarm given up", "server", a.Server, "session_id", a.Session, "alarm", a.Name, "tries", due.Tries)
		_, err := s.State(OfSession).save(ctx, v, nil)
		return held, err
	}
	due.Until, due.Tries = now.Add(lease), due.Tries+1
	if v.Rev, err = s.State(OfSession).save(ctx, v, due); err != nil {
		return held, err // another instance was first; after this error the scheduler sends the alarm again
	}
	a.Payload = due.Payload
	return held, k.handleAlarm(ctx, s, v, due, a)
}

// handleAlarm calls the author's handler for an alarm whose lease the caller has taken.
// handleAlarm deletes the alarm if the handler succeeds or if this was the last try. After any
// other failure it ends the lease, so that the alarm can be tried again.
func (k *Backend) handleAlarm(ctx context.Context, s Session, v storage.Value, due schedule, a Alarm) error {
	handling, cancel := context.WithCancel(ctx)
	defer cancel()
	if deadline, ok := ctx.Deadline(); ok {
		handling, cancel = context.WithDeadline(handling, deadline.Add(-spare))
		defer cancel()
	}
	h := hold(context.WithoutCancel(ctx), s.State(OfSession), v, func(until time.Time) any {
		held := due
		held.Until = until
		return held
	}, func() {}) // nothing stops the handler, even if its alarm was replaced or cancelled
	err := s.in.callAlarm(handling, s, a)
	var left any
	if err != nil && due.Tries < maxAlarmTries {
		again := due
		again.Until = time.Time{}
		left = again
	}
	saved := h.release(left)
	if errors.Is(saved, storage.Conflict) {
		saved = nil
	}
	if err == nil {
		return saved
	}
	k.Log.WarnContext(ctx, "alarm failed", "server", a.Server, "session_id", a.Session, "alarm", a.Name, "tries", due.Tries, "error", err)
	if left == nil {
		return saved
	}
	return errors.Join(err, saved)
}

// callAlarm calls an author's handler, which may panic.
func (in *environment) callAlarm(ctx context.Context, s Session, a Alarm) (err error) {
	if _, err := makeServer(ctx, s); err != nil {
		return err
	}
	if in.onAlarm == nil {
		return errors.New("the server has set an alarm but no handler; call OnAlarm in Server")
	}
	defer func() {
		if fault := recover(); fault != nil {
			err = in.panicked(ctx, fault)
		}
	}()
	return in.onAlarm(ctx, a)
}
