package storagetest

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func TestWrappersKeepTheContract(t *testing.T) {
	Store(t, Harness{Open: func(*testing.T) storage.Store {
		return NewCounting(NewFaulty(NewMemory(), 1, Faults{}))
	}})
}

func each(ctx context.Context, s storage.Store) map[string]func() error {
	return map[string]func() error{
		"Create":              func() error { return s.Create(ctx, plain("s1", "acme")) },
		"Load":                func() error { _, _, err := s.Load(ctx, "s1", "b"); return err },
		"Save":                func() error { return s.Save(ctx, plain("s1", "acme")) },
		"List":                func() error { _, err := s.List(ctx, "", "", 1); return err },
		"PutAnswer":           func() error { _, err := s.PutAnswer(ctx, anAnswer("q", `12`)); return err },
		"Answers":             func() error { _, err := s.Answers(ctx, "s1", nil); return err },
		"PutConnection":       func() error { return s.PutConnection(ctx, storage.Connection{ID: "c"}) },
		"Connection":          func() error { _, err := s.Connection(ctx, "c"); return err },
		"DeleteConnection":    func() error { return s.DeleteConnection(ctx, "c") },
		"CreateKey":           func() error { return s.Keys().Create(ctx, storage.Key{ID: "k"}) },
		"Key":                 func() error { _, err := s.Keys().Get(ctx, "k"); return err },
		"SaveKey":             func() error { return s.Keys().Save(ctx, storage.Key{ID: "k"}) },
		"ListKeys":            func() error { _, err := s.Keys().List(ctx, "", "", 1); return err },
		"CreateGrant":         func() error { return s.Grants().Create(ctx, storage.Grant{ID: "g"}) },
		"Grant":               func() error { _, err := s.Grants().Get(ctx, "g"); return err },
		"SaveGrant":           func() error { return s.Grants().Save(ctx, storage.Grant{ID: "g"}) },
		"ListGrants":          func() error { _, err := s.Grants().List(ctx, "", "", 1); return err },
		"CreateUpstreamToken": func() error { return s.UpstreamTokens().Create(ctx, storage.UpstreamToken{ID: "g"}) },
		"UpstreamToken":       func() error { _, err := s.UpstreamTokens().Get(ctx, "g"); return err },
		"SaveUpstreamToken":   func() error { return s.UpstreamTokens().Save(ctx, storage.UpstreamToken{ID: "g"}) },
		"ListUpstreamTokens":  func() error { _, err := s.UpstreamTokens().List(ctx, "", "", 1); return err },
		"PutEntryTicket":      func() error { return s.PutEntryTicket(ctx, storage.EntryTicket{Hash: "h"}) },
		"TakeEntryTicket":     func() error { _, err := s.TakeEntryTicket(ctx, "h"); return err },
		"LoadValue":           func() error { _, err := s.LoadValue(ctx, storage.ValueKey{}); return err },
		"SaveValue":           func() error { _, err := s.SaveValue(ctx, storage.Value{Data: []byte("123")}); return err },
		"SaveHandshake":       func() error { return s.SaveHandshake(ctx, storage.Handshake{}) },
		"Recorded":            func() error { _, err := s.Recorded(ctx, nil); return err },
		"ListHandshakes":      func() error { _, err := s.ListHandshakes(ctx, "d", "v"); return err },
		"Handshake":           func() error { _, err := s.Handshake(ctx, "d", "v"); return err },
		"Append":              func() error { return s.Append(ctx, aBatch(1, `1`, `23`)) },
		"Read":                func() error { _, err := s.Read(ctx, "s1", "r1", 0, 1); return err },
		"Tail":                func() error { _, err := s.Tail(ctx, "s1", "r1"); return err },
		"Newest":              func() error { _, err := s.Newest(ctx, "s1"); return err },
		"Wait":                func() error { _, err := s.Wait(ctx, "s1", "r1", 0, past()); return err },
		"Box":                 func() error { _, err := s.Box(ctx, "b"); return err },
		"SaveBox":             func() error { return s.SaveBox(ctx, storage.Box{ID: "b"}) },
		"PutItem":             func() error { _, err := s.PutItem(ctx, storage.Item{Raw: []byte("1234")}); return err },
		"Release":             func() error { _, err := s.Release(ctx, "b", "r", 1); return err },
		"SwapItem":            func() error { _, err := s.SwapItem(ctx, storage.Item{}, storage.Item{}); return err },
		"Claim":               func() error { _, err := s.Claim(ctx, "b", "r", 1); return err },
		"Item":                func() error { _, err := s.Item(ctx, "b", "r"); return err },
		"Items":               func() error { _, err := s.Items(ctx, "b"); return err },
		"DeleteItem":          func() error { return s.DeleteItem(ctx, "b", "r", 1) },
		"Due":                 func() error { _, err := s.Due(ctx); return err },
		"PutPart":             func() error { return s.PutPart(ctx, storage.Part{Data: []byte("12345678")}) },
		"Parts":               func() error { _, err := s.Parts(ctx, "b", "f"); return err },
	}
}

func TestEachCallsEveryMethod(t *testing.T) {
	calls := each(t.Context(), NewMemory())
	for _, name := range Methods() {
		if _, ok := calls[name]; !ok {
			t.Errorf("%s is not called", name)
		}
	}
}

func TestCountingTellsReadsWritesAndWaitsApart(t *testing.T) {
	c := NewCounting(NewMemory())
	want := Counts{Calls: map[string]int{}}
	for name, do := range each(t.Context(), c) {
		_ = do() // failed calls are counted, too
		want.Calls[name] = 1
	}
	want.Reads, want.Writes, want.Waits = 22, 23, 1
	want.Bytes = 2 + 3 + 4 + 8 + 3
	same(t, "Counts", c.Counts(), want)
	c.Reset()
	same(t, "Counts after Reset", c.Counts(), Counts{})
}

func TestUnansweredCallsReachTheStoreAndLostOnesDoNot(t *testing.T) {
	for fault, faults := range map[Fault]Faults{Lost: {Lost: 1}, Unanswered: {Unanswered: 1}} {
		inner := NewCounting(NewMemory())
		f := NewFaulty(inner, 1, faults)
		calls := each(t.Context(), f)
		for name, do := range calls {
			err := do()
			wantCode(t, name, err, storage.Unavailable)
			if !errors.Is(err, fault) {
				t.Errorf("%s: error %v, want one because of %v", name, err, fault)
			}
		}
		reached := map[Fault]int{Lost: 0, Unanswered: len(calls)}
		same(t, "calls that reached the store", len(inner.Counts().Calls), reached[fault])
		same(t, "Done", f.Done(fault), len(calls))
	}
}

func TestUnansweredLoadReturnsNothing(t *testing.T) {
	m := NewMemory()
	noError(t, "Create", m.Create(t.Context(), plain("s1", "acme")))
	noError(t, "SaveBox", m.SaveBox(t.Context(), storage.Box{ID: "b", Gen: 1}))
	s, b, err := NewFaulty(m, 1, Faults{Unanswered: 1}).Load(t.Context(), "s1", "b")
	wantCode(t, "Load", err, storage.Unavailable)
	same(t, "session", s, storage.Session{})
	same(t, "box", b, storage.Box{})
}

func TestFaultsCanBeSetForOneMethod(t *testing.T) {
	f := NewFaulty(NewMemory(), 1, Faults{})
	f.Set("Append", Faults{Lost: 1})
	wantCode(t, "Append", f.Append(t.Context(), aBatch(1, `1`)), storage.Unavailable)
	_, err := f.Tail(t.Context(), "s1", "r1")
	noError(t, "Tail", err)
	f.Set("", Faults{Lost: 1})
	f.Set("Append", Faults{})
	noError(t, "Append", f.Append(t.Context(), aBatch(1, `1`)))
	_, err = f.Tail(t.Context(), "s1", "r1")
	wantCode(t, "Tail", err, storage.Unavailable)
}

func TestSameSeedGivesSameFaults(t *testing.T) {
	fates := func(seed uint64) (fates []Fault) {
		f := NewFaulty(NewMemory(), seed, Faults{Lost: 0.2, Unanswered: 0.2})
		for range 200 {
			_, err := f.Tail(t.Context(), "s1", "r1")
			var fault Fault
			errors.As(err, &fault)
			fates = append(fates, fault)
		}
		return fates
	}
	first := fates(7)
	same(t, "faults of the same seed", fates(7), first)
	if reflect.DeepEqual(fates(8), first) {
		t.Error("two seeds give the same faults")
	}
	counts := map[Fault]int{}
	for _, f := range first {
		counts[f]++
	}
	for _, f := range []Fault{Lost, Unanswered, ""} {
		if counts[f] < 10 {
			t.Errorf("%d of 200 calls had the fault %q", counts[f], f)
		}
	}
}

func TestSlowCallsTakeTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFaulty(NewMemory(), 1, Faults{Slow: 1, Delay: time.Hour})
		begin := time.Now()
		_, err := f.Tail(t.Context(), "s1", "r1")
		noError(t, "Tail", err)
		if took := time.Since(begin); took <= 0 || took > time.Hour {
			t.Errorf("a slow call took %s, want up to an hour", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
		defer cancel()
		_, err = f.Tail(ctx, "s1", "r1")
		wantCode(t, "Tail with too little time", err, storage.Unavailable)
	})
}
