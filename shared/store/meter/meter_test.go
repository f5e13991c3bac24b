package meter_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/observe"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// written writes a log line and reads it again as JSON.
func written(t *testing.T, spent storage.Spent) map[string]any {
	t.Helper()
	var b bytes.Buffer
	observe.Log(slog.New(slog.NewJSONHandler(&b, nil)))(t.Context(), &observe.Event{Kind: observe.Request, Spent: &spent})
	var line map[string]any
	commontest.OK(t, json.Unmarshal(b.Bytes(), &line))
	return line
}

type conns struct{}

func (conns) Post(context.Context, string, []byte) error { return nil }
func (conns) Close(context.Context, string) error        { return nil }

// near reports whether two counts are the same but for rounding.
func near(a, b float64) bool { return math.Abs(a-b) < 1e-12 }

func TestALineSaysWhatItsInvocationIsBilledFor(t *testing.T) {
	m := meter.New(meter.Options{MemoryMB: 512})
	store := m.Store(storagetest.NewMemory(), nil)
	clients := m.Clients(conns{})
	_, err := store.Box(t.Context(), "acme/one")
	commontest.OK(t, err)
	commontest.OK(t, clients.Post(t.Context(), "c", make([]byte, 33<<10)))
	got := m.Spent(storage.Account{Over: storage.OverREST, Tenant: "acme", Server: "one", Out: 11 << 20, Took: 1500 * time.Microsecond}).Units
	got.LogGB = 0
	want := meter.Units{
		Invocations: 1, GBSeconds: 0.001, Requests: 2, Messages: 2, ReadUnits: 1, OutGB: meter.GB(11<<20 + 33<<10),
	}
	commontest.Same(t, want, got)
}

func TestWhatALineHasSaidTheNextDoesNotRepeat(t *testing.T) {
	m := meter.New(meter.Options{})
	store := m.Store(storagetest.NewMemory(), nil)
	for range 2 {
		_, err := store.Box(t.Context(), "acme/one")
		commontest.OK(t, err)
		line := written(t, m.Spent(storage.Account{Over: storage.OverSocket, In: 1}))
		commontest.EqualIn(t, "read units", 1.0, line["units"].(map[string]any)["read_units"])
	}
}

func TestMessagesAreBilledBySize(t *testing.T) {
	for size, want := range map[int]float64{0: 1, 1: 1, 32 << 10: 1, 32<<10 + 1: 2, 128 << 10: 4} {
		commontest.EqualIn(t, fmt.Sprintf("messages of %d bytes", size), want, meter.Messages(size))
	}
}

func TestMetricsHaveServersAsDimensionsAndNothingElse(t *testing.T) {
	m := meter.New(meter.Options{Metrics: "Dormouse/dev"})
	line := written(t, m.Spent(storage.Account{Over: storage.OverREST, Tenant: "acme", Server: "one", Session: "s1", In: 5, Out: 7, Code: storage.Busy}))
	head := line["_aws"].(map[string]any)
	dimensions := map[string]bool{}
	for _, d := range head["CloudWatchMetrics"].([]any) {
		d := d.(map[string]any)
		commontest.EqualIn(t, "namespace", "Dormouse/dev", d["Namespace"])
		for _, set := range d["Dimensions"].([]any) {
			for _, name := range set.([]any) {
				dimensions[name.(string)] = true
			}
		}
		for _, metric := range d["Metrics"].([]any) {
			if name := metric.(map[string]any)["Name"].(string); line[name] == nil {
				t.Errorf("metric %s has no value in the line", name)
			}
		}
	}
	commontest.SameIn(t, "dimensions", map[string]bool{"server": true, "code": true}, dimensions)
	if line["errors"] != 1.0 || line["calls"] != 1.0 || line["bytes_out"] != 7.0 {
		t.Errorf("the line is %v", line)
	}
}

func TestAWakeIsToldByItsPhases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		time.Sleep(7 * time.Millisecond)
		m := meter.New(meter.Options{Started: began})
		store := m.Store(storagetest.NewMemory(), nil)
		b := storage.Box{ID: "acme/one", State: storage.Starting, Gen: 1, Attempt: 1, Changed: time.Now()}
		commontest.OK(t, store.SaveBox(t.Context(), b))
		time.Sleep(3 * time.Millisecond)
		line := written(t, m.Spent(storage.Account{Over: storage.OverREST, Server: "one", Took: 3 * time.Millisecond}))
		if line["wakes"] != 1.0 || line["wake_function_ms"] != 7.0 || line["wake_first_answer_ms"] != 3.0 || line["wake_box_ms"] != nil {
			t.Errorf("the function that wakes says %v", line)
		}
		time.Sleep(20 * time.Millisecond)
		b, err := store.Box(t.Context(), b.ID)
		commontest.OK(t, err)
		b.State, b.Changed = storage.Awake, time.Now()
		commontest.OK(t, store.SaveBox(t.Context(), b))
		line = written(t, m.Spent(storage.Account{Over: storage.OverRelay, Server: "one"}))
		if line["wake_box_ms"] != 23.0 || line["wakes"] != nil || line["wake_function_ms"] != nil {
			t.Errorf("the function that hears the hello says %v", line)
		}
	})
}

func TestABillIsTheSumOfItsCharges(t *testing.T) {
	p := meter.Published()
	u := meter.Units{Requests: 1e6, Messages: 3e6, Invocations: 2e6, ReadUnits: 2e6, WriteUnits: 1e6}
	if got := p.Cost(u); !near(got, 3.5+3+0.4+0.25+0.625) {
		t.Errorf("it costs %v", got)
	}
	if got := p.Cost(u.Plus(u)) - p.Cost(u.Times(2)); !near(got, 0) {
		t.Errorf("twice and again differ by %v", got)
	}
	commontest.EqualIn(t, "lines of the bill", 5, len(p.Bill(u)))
	all := meter.Units{
		Invocations: 1, GBSeconds: 1, Requests: 1, Messages: 1, ConnectionMinutes: 1, ReadUnits: 1, WriteUnits: 1, StoredGBMonths: 1,
		VCPUSeconds: 1, TaskGBSeconds: 1, AddressSeconds: 1, LogGB: 1, OutGB: 1,
	}
	commontest.EqualIn(t, "of 13 units have a price", 13, len(p.Bill(all)))
	if p.Date == "" || p.Source == "" {
		t.Errorf("the prices do not say of when and from where they are: %+v", p)
	}
}

func TestATaskIsBilledForAMinuteAtLeastAndInWholeSeconds(t *testing.T) {
	size := meter.BoxSize{VCPUs: 0.5, MemoryMB: 2048, Addresses: 1}
	for seconds, want := range map[float64]float64{0: 60, 59.5: 60, 60.1: 61, 3600: 3600} {
		got := meter.Task(seconds, size)
		commontest.SameIn(t, fmt.Sprint(seconds), meter.Units{VCPUSeconds: want / 2, TaskGBSeconds: want * 2, AddressSeconds: want}, got)
	}
}

func TestNoCallOfAStoreIsForNothing(t *testing.T) {
	type collections = map[string]func(storage.Store) any
	for of, calls := range (collections{
		"the store":       func(s storage.Store) any { return s },
		"keys":            func(s storage.Store) any { return s.Keys() },
		"grants":          func(s storage.Store) any { return s.Grants() },
		"upstream tokens": func(s storage.Store) any { return s.UpstreamTokens() },
	}) {
		all := reflect.TypeFor[storage.Store]()
		if of != "the store" {
			all = reflect.TypeOf(calls(storagetest.NewMemory()))
		}
		for i := range all.NumMethod() {
			name := all.Method(i).Name
			if slices.Contains([]string{"Close", "Keys", "Grants", "UpstreamTokens"}, name) {
				continue
			}
			e := meter.Estimate(storagetest.NewMemory())
			m := reflect.ValueOf(calls(e)).MethodByName(name)
			args := []reflect.Value{reflect.ValueOf(t.Context())}
			for n := 1; n < m.Type().NumIn(); n++ {
				arg := reflect.New(m.Type().In(n)).Elem()
				if arg.Type() == reflect.TypeFor[[]string]() {
					arg = reflect.ValueOf([]string{"q1"})
				}
				args = append(args, arg)
			}
			m.Call(args) // most calls fail; they are billed, too
			if got := e.Spent(); got.ReadUnits+got.WriteUnits < 1 {
				t.Errorf("%s of %s is billed with %+v", name, of, got)
			}
		}
	}
}

func TestWhatIsPushedToClientsGoesToTheInternetAndFramesDoNot(t *testing.T) {
	m := meter.New(meter.Options{})
	clients, runners := m.Clients(conns{}), m.Runners(conns{})
	for _, post := range []func(context.Context, string, []byte) error{clients.Post, runners.Post} {
		commontest.OK(t, post(t.Context(), "c", make([]byte, 40<<10)))
	}
	line := written(t, m.Spent(storage.Account{Over: storage.OverRelay, Tenant: "acme", Server: "one", In: 10, Out: 10}))
	got := line["units"].(map[string]any)
	if got["messages"] != 2.0+2+1+1 || got["out_gb"] != float64(40<<10)/(1<<30) {
		t.Errorf("units are %v", got)
	}
}
