package main

import (
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/infra/local"
)

// The states of a server.
const (
	awake     = "awake"      // a box is up, and a process is ready, or all have ended normally
	asleep    = "asleep"     // nothing runs
	starting  = "starting"   // a box is up, and no process has answered initialize yet
	failed    = "failed"     // a box is up, no process runs in it, and the last one failed
	notServed = "not served" // the servers file has a mistake
	off       = "off"        // the servers file disables it
)

// serverLine is the state of a server, as one line.
type serverLine struct {
	Name      string `json:"name"`
	State     string `json:"state"`
	Boxes     int    `json:"boxes"`
	Processes int    `json:"processes"` // the server's own running processes
	Why       string `json:"why,omitempty"`
}

// summary returns a line for each server of the machine. all are the processes of its
// boxes, including those that have ended.
func summary(m local.MachineStatus, all []processLine) []serverLine {
	lines := []serverLine{}
	for _, s := range m.Servers {
		boxes := slices.DeleteFunc(slices.Clone(m.Boxes), func(b local.BoxStatus) bool { return b.Server != s.Name })
		own := slices.DeleteFunc(slices.Clone(all), func(p processLine) bool {
			return !slices.ContainsFunc(boxes, func(b local.BoxStatus) bool { return b.Box == p.Box })
		})
		l := serverLine{Name: s.Name, State: asleep, Boxes: len(boxes), Why: s.Why}
		switch {
		case s.Off:
			l.State = off
		case s.Why != "":
			l.State = notServed
		case len(boxes) > 0:
			l.State, l.Processes, l.Why = stateOf(own)
		}
		lines = append(lines, l)
	}
	return lines
}

// stateOf returns the state of a server with boxes up. A ready process counts for more
// than one that is starting, and that for more than a failed one.
func stateOf(all []processLine) (state string, running int, why string) {
	var last processLine // the newest that failed
	ready, tries := false, len(all) == 0
	for _, p := range all {
		switch p.State {
		case "ready":
			ready = true
			running++
		case "started":
			tries = true
			running++
		case "staging":
			tries = true
		case "exited":
			if p.Since.After(last.Since) {
				last = p
			}
		}
	}
	switch {
	case ready:
		return awake, running, ""
	case tries:
		return starting, running, ""
	case last.State != "":
		why, _, _ = strings.Cut(last.Detail, "\n")
		return failed, 0, why
	}
	return awake, 0, "" // all processes in the box have ended normally
}
