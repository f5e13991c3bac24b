// Package history keeps what clients have called on this machine. It has each of the last
// calls, and counts by server for each minute of a day and each hour of three months. It
// gets its data from events, so a call costs no operation of the store. It has names,
// times and outcomes, and neither arguments nor results.
package history

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

// saveEvery is how often the history is saved while something happens. A machine that is
// killed loses what happened since.
const saveEvery = time.Minute

// How long calls and counts are kept.
const (
	keptCallAge = 7 * 24 * time.Hour
	keptMinutes = 24 * time.Hour
	keptHours   = 90 * 24 * time.Hour
)

// bounds are the upper bounds of the durations that are counted together, in milliseconds.
// The last count, after these, is for longer durations.
var bounds = [11]float64{5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 10_000, 60_000}

// History is the history of a machine. The methods are safe for concurrent use.
type History struct {
	kept   int           // how many calls
	full   chan struct{} // asks Keep to save before its minute is over; holds one
	saving sync.Mutex    // held during a write to the file; taken before mu

	mu     sync.Mutex        // never held during a write, so that Record does not wait for the disk
	calls  []api.Call        // calls that are not saved yet
	starts []start           // starts that are not saved yet
	counts map[minute]counts // counts that are not saved yet
	totals map[labels]counts // counts since the program has started
	turned map[refusal]int64 // requests that were refused since the start of the program
	series map[string]int    // how many combinations of labels in totals are of a tenant
	file   *file             // nil before Open
}

// minute is the key of the counts: one minute of one server of a tenant.
type minute struct {
	at             int64 // its begin, in seconds since 1970
	tenant, server string
}

// counts is what happened: calls by duration, failed calls, and starts of boxes.
type counts struct {
	durations     [len(bounds) + 1]int64
	took          time.Duration // all calls together
	failed, wakes int64
	refused       int64 // calls that were refused; they are in no other number
	installs      int64 // and how long they took
	installed     time.Duration
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

// New returns a history that keeps this number of calls. It is only in memory until Open.
func New(calls int) *History {
	return &History{kept: calls, full: make(chan struct{}, 1), counts: map[minute]counts{}, totals: map[labels]counts{}, series: map[string]int{}, turned: map[refusal]int64{}}
}

// maxUnsaved is how many calls wait for the next save before Keep saves at once, and how
// many are kept when a save has failed.
const maxUnsaved = 10_000

// Record takes an event. It is a printer of a [journal.Recorder], and does not wait for the
// disk.
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

// callOf returns the record of a call, or of a request that was refused.
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

// refusal tells the counters of refusals apart. Callers whom nobody knows have no tenant.
type refusal struct{ tenant, reason string }

func (h *History) refused(e journal.Event) {
	of := refusal{e.Tenant, cmp.Or(e.Refusal, e.Code, "other")}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.turned[of]++
}

// add keeps a record for the next save.
func (h *History) add(c api.Call) {
	h.mu.Lock()
	h.calls = append(h.calls, c)
	full := len(h.calls) == maxUnsaved // true for one call only, so that a save that fails is not tried again for each call
	h.mu.Unlock()
	if full {
		select {
		case h.full <- struct{}{}:
		default: // Keep has been asked
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

// inMS returns milliseconds with one digit after the point.
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

// Open continues the history in a file and makes the file if there is none.
func (h *History) Open(path string) error {
	f, err := openFile(path)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.file = f
	return nil
}

// Keep saves the history at intervals until ctx ends. It writes nothing if nothing has
// happened.
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

// save writes what is not saved. After an error it keeps the newest calls until the next
// save.
func (h *History) save() error {
	h.saving.Lock()
	defer h.saving.Unlock()
	h.mu.Lock()
	f, calls, starts, added := h.file, h.calls, h.starts, h.counts
	if f == nil || len(calls) == 0 && len(starts) == 0 && len(added) == 0 {
		h.mu.Unlock()
		return nil
	}
	h.calls, h.starts, h.counts = nil, nil, map[minute]counts{}
	h.mu.Unlock()
	if err := f.add(context.Background(), calls, starts, added); err != nil {
		h.putBack(calls, starts, added)
		return err
	}
	return f.prune(context.Background(), time.Now(), h.kept)
}

// putBack takes back what save could not write, and puts it before what was recorded meanwhile.
func (h *History) putBack(calls []api.Call, starts []start, added map[minute]counts) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls, h.starts = append(calls, h.calls...), append(starts, h.starts...)
	h.calls, h.starts = h.calls[max(0, len(h.calls)-maxUnsaved):], h.starts[max(0, len(h.starts)-maxUnsaved):]
	for m, n := range added {
		h.counts[m] = h.counts[m].plus(n)
	}
}

// Close saves the history and closes its file. Nothing may use the history afterwards.
func (h *History) Close() error {
	err := h.save()
	if h.file != nil {
		err = errors.Join(err, h.file.db.Close())
	}
	return err
}
