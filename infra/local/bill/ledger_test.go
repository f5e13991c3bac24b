package bill

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/internal/emulator/logline"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
)

// openLedger opens the ledger of a folder. running are the boxes that it lists.
func openLedger(t *testing.T, folder string, running ...fleet.Status) *Ledger {
	t.Helper()
	l, err := Open(folder, func(string) meter.BoxSize { return meter.BoxSize{VCPUs: 1, MemoryMB: 1024} },
		func(context.Context) ([]fleet.Status, error) { return running, nil }, slog.New(slog.DiscardHandler))
	commontest.OK(t, err)
	return l
}

// billed returns the present bill of a ledger.
func billed(t *testing.T, l *Ledger) Bill {
	t.Helper()
	b, err := l.Bill(t.Context())
	commontest.OK(t, err)
	return b
}

// sharesOf returns a bill's shares by their owner.
func sharesOf(b Bill) map[owner]meter.Units {
	all := map[owner]meter.Units{}
	for _, s := range b.Shares {
		all[ownerOf(s)] = s.Units
	}
	return all
}

// record counts the event of a log line.
func record(l *Ledger, line string) {
	if e, ok := logline.Parse(line); ok {
		l.Observe(e)
	}
}

const spentLine = `{"msg":"request","server":"one","tenant":"acme","session_id":"s1","connection_id":"c1","units":{"invocations":1,"read_units":2,"write_units":3}}`

func TestALineIsItsOwnersAndPartOfTheTotal(t *testing.T) {
	l := openLedger(t, t.TempDir())
	record(l, spentLine)
	record(l, spentLine)
	record(l, `{"msg":"request","server":"one"}`)
	record(l, `{"msg":"request","server":"two","tenant":"idle","units":{}}`)
	record(l, `no JSON with "units":{`)
	b := billed(t, l)
	commontest.SameIn(t, "total", meter.Units{Invocations: 2, ReadUnits: 4, WriteUnits: 6}, l.Total())
	want := map[owner]meter.Units{{server: "one", tenant: "acme", session: "s1"}: {Invocations: 2, ReadUnits: 4, WriteUnits: 6}}
	commontest.SameIn(t, "shares", want, sharesOf(b))
	commontest.EqualIn(t, "days", 1, len(b.Days))
}

func TestWhoWasNotLetInOwnsNothing(t *testing.T) {
	l := openLedger(t, t.TempDir())
	record(l, `{"msg":"request","server":"one","tenant":"","session_id":"stolen","units":{"invocations":1}}`)
	want := map[owner]meter.Units{{}: {Invocations: 1}}
	commontest.SameIn(t, "shares", want, sharesOf(billed(t, l)))
}

func TestAConnectionIsBilledToWhoSpokeOverIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := openLedger(t, t.TempDir())
		l.Opened("c1")
		l.Opened("c2")
		record(l, spentLine)
		time.Sleep(time.Minute)
		l.Closed("c2", time.Minute)
		time.Sleep(30 * time.Second)
		check := func(when string) {
			t.Helper()
			got := sharesOf(billed(t, l))
			if got[owner{server: "one", tenant: "acme", session: "s1"}].ConnectionMinutes != 1.5 || got[owner{}].ConnectionMinutes != 1 {
				t.Errorf("%s: shares are %+v", when, got)
			}
		}
		check("while one is open")
		l.Closed("c1", 90*time.Second)
		check("when both are closed")
	})
}

func TestABoxIsBilledToItsTenant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		l := openLedger(t, t.TempDir(),
			fleet.Status{Box: "acme/one", Server: "one", State: fleet.Running, Started: now.Add(-time.Second)},
			fleet.Status{Box: "acme/one", Server: "one", State: fleet.Stopped, Started: now, Stopped: now.Add(time.Hour)}, // billed when it stopped
		)
		l.Stopped(fleet.Status{Box: "acme/one", Server: "one", State: fleet.Stopped, Started: now, Stopped: now.Add(2 * time.Minute)})
		for range 2 { // reading the bill does not add to it
			want := meter.Units{VCPUSeconds: 180, TaskGBSeconds: 180}
			commontest.SameIn(t, "shares", map[owner]meter.Units{{server: "one", tenant: "acme"}: want}, sharesOf(billed(t, l)))
		}
	})
}

func TestABillGoesOnWhereTheLastRunEnded(t *testing.T) {
	folder := t.TempDir()
	first := openLedger(t, folder)
	record(first, spentLine)
	began := billed(t, first).Since
	first.Close()
	second := openLedger(t, folder)
	record(second, spentLine)
	b := billed(t, second)
	commontest.SameIn(t, "total", meter.Units{Invocations: 2, ReadUnits: 4, WriteUnits: 6}, second.Total())
	if got := sharesOf(b)[owner{server: "one", tenant: "acme", session: "s1"}].Invocations; got != 2 || !b.Since.Equal(began) {
		t.Errorf("%v invocations since %v, want 2 since %v", got, b.Since, began)
	}
}

func TestFramesOfASessionAreBilledToItsPrincipal(t *testing.T) {
	folder := t.TempDir()
	l := openLedger(t, folder)
	record(l, `{"msg":"work","server":"one","session_id":"s1","principal":"ada"}`)
	record(l, spentLine) // as of a frame: it names the session only
	record(l, `{"msg":"request","server":"one","tenant":"acme","principal":"bob","units":{"invocations":1}}`)
	l.Close()
	again := openLedger(t, folder)
	record(again, spentLine)
	b := billed(t, again)
	want := map[owner]float64{
		{server: "one", tenant: "acme", session: "s1", principal: "ada"}: 2,
		{server: "one", tenant: "acme", principal: "bob"}:                1,
	}
	for o, n := range want {
		commontest.EqualIn(t, fmt.Sprintf("%+v", o), n, sharesOf(b)[o].Invocations)
	}
	days := map[string]float64{}
	for _, s := range b.Days {
		days[s.Principal] += s.Units.Invocations
	}
	if days["ada"] != 2 || days["bob"] != 1 {
		t.Errorf("invocations of today by principal: %v", days)
	}
}

// A machine that is killed loses at most the last minute of its use.
func TestALedgerIsWrittenDownEachMinuteInWhichSomethingWasUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		folder := t.TempDir()
		l := openLedger(t, folder)
		ctx, end := context.WithCancel(t.Context())
		defer end()
		go l.Keep(ctx)
		time.Sleep(time.Hour)
		if b, err := Read(folder); err != nil || !b.Since.IsZero() {
			t.Errorf("an idle hour was written down: %+v, %v", b, err)
		}
		record(l, spentLine)
		time.Sleep(time.Minute)
		synctest.Wait()
		if b, err := Read(folder); err != nil || sharesOf(b)[owner{server: "one", tenant: "acme", session: "s1"}].Invocations != 1 {
			t.Errorf("a minute later: %+v, %v", b, err)
		}
	})
}

func TestALedgerThatWasNotSavedIsSavedAMinuteLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		folder := filepath.Join(t.TempDir(), "later")
		l := openLedger(t, folder)
		failed := false
		l.running = func(context.Context) (_ []fleet.Status, err error) {
			if !failed {
				failed, err = true, errors.New("boxes cannot be listed")
			}
			return nil, err
		}
		record(l, spentLine)
		go l.Keep(t.Context())
		time.Sleep(2*saveEvery + time.Second) // the second time there is no folder yet
		synctest.Wait()
		commontest.OK(t, os.Mkdir(folder, 0o700))
		time.Sleep(saveEvery)
		synctest.Wait()
		if b, err := Read(folder); err != nil || len(b.Shares) != 1 {
			t.Errorf("after two failures: %+v, %v", b, err)
		}
	})
}

func TestALedgerHasABound(t *testing.T) {
	l := openLedger(t, t.TempDir())
	for n := range maxOwners + 5 {
		l.mu.Lock()
		l.give(owner{server: "one", tenant: "acme", session: strconv.Itoa(n)}, meter.Units{Invocations: 1})
		l.mu.Unlock()
	}
	if len(l.shares) != maxOwners+1 || l.shares[owner{server: "one", tenant: "acme"}].Invocations != 5 {
		t.Errorf("%d owners; what is over the bound has %+v", len(l.shares), l.shares[owner{server: "one", tenant: "acme"}])
	}
}

// A call costs what its request and its frames have used.
func TestAToolIsBilledForItsRequestsAndTheirFrames(t *testing.T) {
	const (
		work    = `{"msg":"work","server":"one","tenant":"acme","session_id":"s1","principal":"ada","trace":"%s","tool":"%s"}`
		request = `{"msg":"request","server":"one","tenant":"acme","session_id":"s1","principal":"ada","trace":"%s","tool":"%s","units":{"requests":1}}`
		other   = `{"msg":"request","server":"one","tenant":"acme","session_id":"s1","principal":"ada","trace":"%s","units":{"requests":1}}`
		frame   = `{"msg":"frame","server":"one","tenant":"acme","session_id":"s1","trace":"own","traces":[%s],"units":{"messages":2}}`
	)
	folder := t.TempDir()
	l := openLedger(t, folder)
	for _, line := range []string{
		fmt.Sprintf(work, "t1", "echo"), fmt.Sprintf(frame, `"t1"`), fmt.Sprintf(request, "t1", "echo"), fmt.Sprintf(frame, `"t1"`),
		fmt.Sprintf(request, "t2", "add"),
		fmt.Sprintf(frame, `"t3"`), fmt.Sprintf(other, "t3"),
		fmt.Sprintf(frame, `"t1","t2"`),
		fmt.Sprintf(frame, `"t4"`), // its request goes on
	} {
		record(l, line)
	}
	want := map[string]meter.Units{"echo": {Requests: 1, Messages: 4}, "add": {Requests: 1}, "": {Requests: 1, Messages: 6}}
	check := func(l *Ledger) {
		t.Helper()
		b, got := billed(t, l), map[string]meter.Units{}
		for _, s := range b.Days {
			got[s.Tool] = got[s.Tool].Plus(s.Units)
		}
		commontest.SameIn(t, "by tool", want, got)
		commontest.SameIn(t, "total", meter.Units{Requests: 3, Messages: 10}, l.Total())
		for _, s := range b.Shares {
			commontest.EqualIn(t, "the tool in a share of a session", "", s.Tool)
		}
	}
	check(l)
	l.Close()
	l = openLedger(t, folder)
	check(l)
	for i := range 2 * maxOwners {
		record(l, fmt.Sprintf(work, strconv.Itoa(i), "echo"))
	}
	if n := len(l.tools); n > maxOwners {
		t.Errorf("the tools of %d calls are remembered", n)
	}
}
