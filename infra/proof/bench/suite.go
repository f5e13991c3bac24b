package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"
)

// part is one measurement, which can run by itself.
type part struct {
	name  string
	about string
	wants func(peer) bool // which programs take part if none is named
	fits  func(peer) bool // which programs can take part
	run   func(context.Context, *measurement) error
	// bases are the programs with which the others are compared, round by round.
	bases []string
	// tools reports that the part needs further tools of our own echo server.
	tools bool
	// asked is set for a part that runs only when it is named.
	asked bool
}

func parts() []part {
	anybody := func(peer) bool { return true }
	keeps := func(p peer) bool { return p.keeps }
	named := func(names ...string) func(peer) bool {
		return func(p peer) bool { return slices.Contains(names, p.name) }
	}
	few := named("dormouse", "supergateway", "mcp-proxy", "mcpagent", "native")
	ours := named("dormouse")
	return []part{
		{name: "profile", about: "CPU profiles of Dormouse at 16", wants: ours, fits: ours, run: profiles, asked: true},
		{name: "latency", about: "initialize, first call, calls at 1 and 16", wants: anybody, fits: anybody, run: latency, bases: []string{"supergateway", "tbxark", "mcpagent", "native"}},
		{name: "churn", about: "sessions opened, called once and deleted, 16 at once", wants: keeps, fits: keeps, run: churn, bases: []string{"supergateway", "mcpagent", "native"}},
		{name: "idle", about: "sessions that nobody uses, 8 s after their last call", wants: few, fits: keeps, run: idle},
		{name: "wake", about: "the first call after a rest", wants: few, fits: keeps, run: wake, bases: []string{"mcpagent"}},
		{name: "loss", about: "calls that were cut, and a host that was started again", wants: keeps, fits: keeps, run: loss, tools: true},
		{name: "one", about: "50 and 200 servers behind /mcp", wants: ours, fits: ours, run: oneAddress, tools: true, asked: true},
		{name: "scale", about: "what grows: servers, sessions, events, held streams, WebSockets", wants: ours, fits: ours, run: scale, asked: true},
	}
}

// programsTable is the name of a table that the part "latency" fills: the CPU time of a call by
// program, with 16 clients.
const programsTable = "programs"

func partNames() (names []string) {
	for _, p := range parts() {
		names = append(names, p.name)
	}
	return names
}

// suite is one run of the benchmark.
type suite struct {
	place   place
	options options
	out     io.Writer
	server  []string
	who     []peer
	missing map[string]string // programs left out, and why
	found   samples
	ran     map[string]partRun
	notes   []string // what failed in the part that is measured now
}

func newSuite(p place, o options, out io.Writer) *suite {
	return &suite{place: p, options: o, out: out, missing: map[string]string{}, ran: map[string]partRun{}}
}

// serve finds the command that starts the stdio server.
func (s *suite) serve(missing map[string]string) error {
	switch s.options.server {
	case "echo":
		s.server = []string{s.place.echo()}
		return nil
	case "everything":
		if why, ok := missing[needNode]; ok {
			return fmt.Errorf("the reference server could not be installed: %s", why)
		}
		s.server = []string{"node", s.place.node("@modelcontextprotocol", "server-everything", "dist", "index.js")}
		return nil
	default:
		return fmt.Errorf("there is no server %q; there are echo and everything", s.options.server)
	}
}

// leaveOut keeps the programs that can run, and records why each of the others cannot.
func (s *suite) leaveOut(who []peer, missing map[string]string) {
	for _, p := range who {
		i := slices.IndexFunc(p.needs, func(n string) bool { return missing[n] != "" })
		if i < 0 {
			s.who = append(s.who, p)
			continue
		}
		s.missing[p.name] = missing[p.needs[i]]
		s.say("%s is not measured: %s", p.name, missing[p.needs[i]])
	}
}

// measure runs a part of the benchmark: each round measures every program once, in a random order.
func (s *suite) measure(ctx context.Context, p part) error {
	if s.options.rounds < 1 {
		return nil
	}
	if p.tools && s.options.server != "echo" {
		s.say("%s is not measured: server %s has not the tools for it", p.name, s.options.server)
		return nil
	}
	run := partRun{
		Began: time.Now().UTC(), Server: s.options.server, Rounds: s.options.rounds, Scale: s.options.scale,
		Busy: busy(), Group: s.place.group != nil, Missing: s.missing,
	}
	s.notes = nil
	defer func() {
		run.Notes = s.notes
		s.ran[p.name] = run
	}()
	for round := 1; round <= s.options.rounds; round++ {
		for _, i := range rand.Perm(len(s.who)) {
			who := s.who[i]
			if !p.fits(who) || s.options.peers == "" && !p.wants(who) {
				continue
			}
			m := &measurement{suite: s, part: p.name, round: round, peer: who}
			began := time.Now()
			err := p.run(ctx, m)
			if ctx.Err() != nil {
				return errors.New("interrupted")
			}
			if err != nil {
				m.say("failed: %v", err)
				s.notes = append(s.notes, fmt.Sprintf("%s, round %d: %v", who.name, round, err))
				continue
			}
			m.say("done in %.1f s", time.Since(began).Seconds())
		}
	}
	return nil
}

func (s *suite) say(format string, values ...any) {
	_, _ = fmt.Fprintf(s.out, format+"\n", values...) // the terminal may be gone
}

// measurement is the measuring of one part, for one compared program, in one round.
type measurement struct {
	*suite
	part  string
	round int
	peer  peer
}

func (m *measurement) start(ctx context.Context, l launch) (*endpoint, error) {
	if l.server == nil {
		l.server = m.server
	}
	e, err := m.peer.start(ctx, m.place, l)
	if err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	e.peer = m.peer
	return e, nil
}

func (m *measurement) add(metric, unit string, value float64) {
	m.found = append(m.found, sample{m.part, m.round, m.peer.name, metric, unit, value})
}

func (m *measurement) say(format string, values ...any) {
	m.suite.say("%s %d/%d %s: %s", m.part, m.round, m.options.rounds, m.peer.name, fmt.Sprintf(format, values...))
}

func (m *measurement) scale(d time.Duration) time.Duration {
	return time.Duration(float64(d) * m.options.scale)
}
