// Package history keeps which tools clients have called on this machine: names, times and outcomes,
// but neither arguments nor results. It has the newest calls one by one. For each server it has
// counts, by minute for a day and by hour for 90 days.
package history

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

// saveEvery is how often the history is saved if it has changed. A killed machine loses what came
// after the last save.
const saveEvery = time.Minute

// How long calls, counts by minute, and counts by hour are kept.
const (
	keptCallAge = 7 * 24 * time.Hour
	keptMinutes = 24 * time.Hour
	keptHours   = 90 * 24 * time.Hour
)

// bounds are the upper bounds, in milliseconds, of the ranges in which durations are counted. One
// more count, the last, is for longer durations.
var bounds = [11]float64{5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 10_000, 60_000}

// History has the latest calls and starts of servers on a machine, and counts of both. The methods
// are safe for concurrent use.
type History struct {
	kept   int           // how many calls are kept at most
	full   chan struct{} // has capacity 1; a value makes Keep save at once
	saving sync.Mutex    // held during a write to the file; taken before mu

	mu     sync.Mutex        // never held during a write, so that Record does not wait for the disk
	calls  []api.Call        // calls that are not saved yet
	starts []start           // starts that are not saved yet
	counts map[minute]counts // counts that are not saved yet
	totals map[labels]counts // counts since the program has started
	turned map[refusal]int64 // number of refused requests since the program has started
	series map[string]int    // number of keys in totals that have a tool, by tenant
	db     *sql.DB           // the SQLite file; nil before Open
}

// minute is the key of counts: a server of a tenant, in one minute.
type minute struct {
	at             int64 // the beginning of the minute, in seconds since 1970
	tenant, server string
}

// counts are the numbers of calls by duration, of failed calls, and of starts of boxes, among
// others.
type counts struct {
	durations     [len(bounds) + 1]int64
	took          time.Duration // duration of all calls together
	failed, wakes int64
	refused       int64         // number of refused calls, which no other field counts
	installs      int64         // number of installs
	installed     time.Duration // duration of all installs together
}

func (c counts) calls() (n int64) {
	for _, d := range c.durations {
		n += d
	}
	return n
}

func (c counts) plus(o counts) counts {
	for i := range c.durations {
		c.durations[i] += o.durations[i]
	}
	c.took, c.failed, c.wakes = c.took+o.took, c.failed+o.failed, c.wakes+o.wakes
	c.refused, c.installs, c.installed = c.refused+o.refused, c.installs+o.installs, c.installed+o.installed
	return c
}

// New returns a history that keeps the newest calls, up to limit. Until Open it is in memory only.
func New(limit int) *History {
	return &History{kept: limit, full: make(chan struct{}, 1), counts: map[minute]counts{}, totals: map[labels]counts{}, series: map[string]int{}, turned: map[refusal]int64{}}
}

// maxUnsaved is how many unsaved calls make Keep save at once. It is also how many calls are kept
// for another try if a save fails.
const maxUnsaved = 10_000

// Record takes an event from a [journal.Recorder]. It does not wait for the disk.
func (h *History) Record(e journal.Event) {
	switch e.Kind {
	case journal.Call:
		h.called(e)
	case journal.Refused:
		h.add(callOf(e))
		h.refused(e)
	case journal.RefusedAgain:
		h.refused(e)
	case journal.ServerReady, journal.ServerFailed:
		h.started(e)
	case journal.BoxWake:
		h.count(e.Time, labels{tenant: e.Tenant, server: e.Name}, counts{wakes: 1})
	}
}

// callOf returns the record of a call or of a refused request.
func callOf(e journal.Event) api.Call {
	return api.Call{
		Time: e.Time.UTC().Truncate(time.Millisecond), Tenant: e.Tenant, Principal: e.Principal, Server: e.Name, Tool: e.Tool,
		Client: e.Client, Session: e.Session, Trace: e.Trace, Failed: e.Failed(), Code: e.Code, Reason: e.Reason,
		MS: inMS(e.Duration), Woke: e.Wakes > 0, In: e.In, Out: e.Out, Sender: api.Sender{Key: e.Key, Address: e.Address, Refusal: e.Refusal},
	}
}

func (h *History) called(e journal.Event) {
	c := callOf(e)
	h.add(c)
	if e.Refusal != "" {
		h.refused(e)
		h.count(e.Time, labels{tenant: c.Tenant, server: c.Server}, counts{refused: 1})
		return
	}
	n := counts{took: e.Duration}
	bin, _ := slices.BinarySearch(bounds[:], c.MS)
	n.durations[bin]++
	if c.Failed {
		n.failed++
	}
	of := labels{c.Tenant, c.Server, c.Principal, c.Tool}
	if e.Unlisted {
		of.tool = unknown
	}
	h.count(e.Time, of, n)
}

// refusal is the key of History.turned. The field tenant is "" for an unknown caller.
type refusal struct{ tenant, reason string }

func (h *History) refused(e journal.Event) {
	of := refusal{e.Tenant, cmp.Or(e.Refusal, e.Code, "other")}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.turned[of]++
}

// add appends a record for the next save.
func (h *History) add(c api.Call) {
	h.mu.Lock()
	h.calls = append(h.calls, c)
	full := len(h.calls) == maxUnsaved // only the call that reaches the limit asks for a save, so that after a failed save not every call tries again
	h.mu.Unlock()
	if full {
		select {
		case h.full <- struct{}{}:
		default: // Keep will save in any case
		}
	}
}

type start struct {
	server string
	api.Start
}

func (h *History) started(e journal.Event) {
	if e.Install > 0 {
		h.count(e.Time, labels{tenant: e.Tenant, server: e.Name}, counts{installs: 1, installed: e.Install})
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.starts) >= maxUnsaved {
		h.starts = h.starts[1:]
	}
	h.starts = append(h.starts, start{e.Name, api.Start{
		Time: e.Time.UTC().Truncate(time.Millisecond), Tenant: e.Tenant, Principal: e.Principal, Client: e.Client, Session: e.Session,
		MS: inMS(e.Duration), InstallMS: inMS(e.Install), Failed: e.Kind == journal.ServerFailed, Phase: e.Phase, Reason: e.Reason,
	}})
}

// inMS returns d in milliseconds, rounded to one decimal.
func inMS(d time.Duration) float64 { return math.Round(float64(d.Microseconds())/100) / 10 }

func (h *History) count(at time.Time, of labels, n counts) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := minute{at.Truncate(time.Minute).Unix(), of.tenant, of.server}
	h.counts[m] = h.counts[m].plus(n)
	if _, ok := h.totals[of]; !ok && of.tool != "" {
		if h.series[of.tenant] >= maxLabels {
			of.principal, of.tool = others, others
		} else {
			h.series[of.tenant]++
		}
	}
	h.totals[of] = h.totals[of].plus(n)
}

// Open opens the file of the history. It creates a missing file.
func (h *History) Open(path string) error {
	db, err := openFile(path)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.db = db
	return nil
}

// Keep saves the history every minute until ctx ends, if it has changed.
func (h *History) Keep(ctx context.Context, log *slog.Logger) {
	t := time.NewTicker(saveEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-h.full:
		case <-ctx.Done():
			return
		}
		if err := h.save(); err != nil {
			log.Warn("the history of calls could not be saved; the next minute tries again", "error", err)
		}
	}
}

// save writes to the file what is not in it yet. If that fails, it keeps the newest maxUnsaved
// calls and starts for the next save.
func (h *History) save() error {
	h.saving.Lock()
	defer h.saving.Unlock()
	h.mu.Lock()
	db, calls, starts, added := h.db, h.calls, h.starts, h.counts
	if db == nil || len(calls) == 0 && len(starts) == 0 && len(added) == 0 {
		h.mu.Unlock()
		return nil
	}
	h.calls, h.starts, h.counts = nil, nil, map[minute]counts{}
	h.mu.Unlock()
	if err := add(context.Background(), db, calls, starts, added); err != nil {
		h.putBack(calls, starts, added)
		return err
	}
	return prune(context.Background(), db, time.Now(), h.kept)
}

// putBack keeps what save could not write, ahead of what was recorded meanwhile.
func (h *History) putBack(calls []api.Call, starts []start, added map[minute]counts) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls, h.starts = append(calls, h.calls...), append(starts, h.starts...)
	h.calls, h.starts = h.calls[max(0, len(h.calls)-maxUnsaved):], h.starts[max(0, len(h.starts)-maxUnsaved):]
	for m, n := range added {
		h.counts[m] = h.counts[m].plus(n)
	}
}

// Close saves the history and closes its file. The history must not be used afterwards.
func (h *History) Close() error {
	err := h.save()
	if h.db != nil {
		err = errors.Join(err, h.db.Close())
	}
	return err
}
