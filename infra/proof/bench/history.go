package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/dynamostore"
	"github.com/dormouse-mcp/dormouse/shared/store/sqlitestore"
)

// Sizes of the history that the benchmark seeds.
const (
	pastEvents   = 100_000
	pastSessions = 100_000
	pastBatch    = 250 // events of one stream
)

// history measures a call in a session with 10 and with 100,000 past events, and with 10
// and 100,000 sessions in the store, on both drivers. It calls the three sessions in
// turns, so that all meet the same conditions.
func history(ctx context.Context, m *measurement) error {
	if err := m.historyOn(ctx, "SQLite", func(e *endpoint) (storage.Store, error) {
		return sqlitestore.Open(filepath.Join(e.data, local.StoreFile))
	}, func() []string { return nil }); err != nil {
		return err
	}
	url, err := m.dynamoDB.Endpoint()
	if err != nil {
		m.say("DynamoDB Local is not there: %v", err)
		m.notes = append(m.notes, fmt.Sprintf("not measured on DynamoDB: %v", err))
		return nil
	}
	tables := map[string]string{}
	next := ""
	return m.historyOn(ctx, "DynamoDB Local", func(e *endpoint) (storage.Store, error) {
		location, err := dynamostore.ParseLocation(tables[e.data], "")
		if err != nil {
			return nil, err
		}
		transport := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
		return dynamostore.New(location.Client(dynamostore.Keys{ID: "local", Secret: "local"}, transport), location.Table, dynamostore.Options{}), nil
	}, func() []string {
		next = "bench-" + storage.NewNonce() + "?endpoint=" + url + "&region=local"
		return []string{"--store", "dynamodb:" + next}
	}, func(e *endpoint) { tables[e.data] = next })
}

// historyOn measures with one driver. flags returns the flags of the next machine.
// started is called with each machine after its start.
func (m *measurement) historyOn(ctx context.Context, driver string, store func(*endpoint) (storage.Store, error), flags func() []string, started ...func(*endpoint)) error {
	var places [2]*endpoint // one with few sessions, one with many
	for i := range places {
		e, err := m.start(ctx, launch{flags: flags()})
		if err != nil {
			return err
		}
		defer e.stop()
		for _, tell := range started {
			tell(e)
		}
		places[i] = e
	}
	few, past, many, err := m.threeSessions(ctx, places)
	if err != nil {
		return err
	}
	events, sessions, err := m.seed(ctx, places, store, past.session)
	if err != nil {
		return fmt.Errorf("seed: %w", err)
	}
	in := ", " + driver
	m.add("past events"+in, "", float64(events))
	m.add("sessions"+in, "", float64(sessions))
	if events < pastEvents || sessions < pastSessions {
		m.notes = append(m.notes, fmt.Sprintf("%s took only %d events and %d sessions in the time there was", driver, events, sessions))
	}
	var took [3][]time.Duration
	for range 12 {
		for i, c := range []*httpClient{few, past, many} {
			e := places[i/2]
			l, err := press(ctx, e, []client{c}, m.scale(300*time.Millisecond), hello)
			if err != nil {
				return err
			}
			if l.first != nil {
				return l.first
			}
			took[i] = append(took[i], l.took...)
		}
	}
	base := quantile(took[0], 0.5)
	m.add("p50 of a call"+in, "ms", base)
	m.add("over that, past events"+in, "", quantile(took[1], 0.5)/base)
	m.add("over that, sessions"+in, "", quantile(took[2], 0.5)/base)
	return nil
}

// threeSessions opens three sessions and makes ten calls in each. few and past are on the
// first endpoint, and seed will add events to past. many is on the second endpoint.
func (m *measurement) threeSessions(ctx context.Context, places [2]*endpoint) (few, past, many *httpClient, err error) {
	var all [3]*httpClient
	for i := range all {
		c := newHTTPClient(places[i/2].address, "2025-06-18", true)
		if _, err := timed(ctx, c.open); err != nil {
			return nil, nil, nil, err
		}
		for range 10 {
			if _, err := timed(ctx, func(ctx context.Context) error { return hello(ctx, c) }); err != nil {
				return nil, nil, nil, err
			}
		}
		all[i] = c
	}
	return all[0], all[1], all[2], nil
}

// seed writes events into the session past on the first endpoint, and sessions into the
// second endpoint, as many as it can in the given time.
func (m *measurement) seed(ctx context.Context, places [2]*endpoint, store func(*endpoint) (storage.Store, error), past string) (events, sessions int, err error) {
	first, err := store(places[0])
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, first.Close()) }()
	second, err := store(places[1])
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, second.Close()) }()
	batches, err := repeat(ctx, pastEvents/pastBatch, m.scale(60*time.Second), func(ctx context.Context, _ int) error {
		return first.Append(ctx, someEvents(past, pastBatch))
	})
	if err != nil {
		return 0, 0, err
	}
	sessions, err = repeat(ctx, pastSessions, m.scale(90*time.Second), func(ctx context.Context, _ int) error {
		return second.Create(ctx, someSession())
	})
	return batches * pastBatch, sessions, err
}

// someEvents returns a stream of n log messages, as a part of a session's past.
func someEvents(session string, n int) storage.Batch {
	line := []byte(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"` + string(bytes.Repeat([]byte("x"), 60)) + `"}}`)
	return storage.Batch{
		Session: storage.ID(session), Stream: storage.NewStreamID(), First: 1, Gen: 1, Seq: 1, Final: true,
		Events: slices.Repeat([][]byte{line}, n), Expires: time.Now().Add(time.Hour),
	}
}

// someSession returns a session that nobody uses.
func someSession() storage.Session {
	now := time.Now()
	return storage.Session{
		ID: storage.NewID(), Server: "echo", Digest: "bench", Tenant: "local", Principal: "local",
		Transport: storage.HTTP, State: storage.Ready, Version: "2025-06-18", Created: now, Used: now,
		Init:    []byte(`{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}`),
		Expires: now.Add(time.Hour),
	}
}

// repeat calls do n times, 8 at a time, or as often as the time allows. It returns how
// often.
func repeat(ctx context.Context, n int, limit time.Duration, do func(context.Context, int) error) (int, error) {
	ends := time.Now().Add(limit)
	numbers := make(chan int)
	var mu sync.Mutex
	var wg sync.WaitGroup
	done := 0
	var first error
	for range 8 {
		wg.Go(func() {
			for i := range numbers {
				err := do(ctx, i)
				mu.Lock()
				if done++; err != nil && first == nil {
					first = err
				}
				mu.Unlock()
			}
		})
	}
	for i := range n {
		mu.Lock()
		stop := first != nil
		mu.Unlock()
		if stop || time.Now().After(ends) {
			break
		}
		numbers <- i
	}
	close(numbers)
	wg.Wait()
	return done, first
}
