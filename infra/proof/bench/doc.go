// Command bench measures Dormouse and what a user would pick instead of it, side by side, in one
// run: the same clients, the same hosted server, the same machine, in rounds whose order changes.
// Absolute figures are those of one machine with all that ran on it; what can be compared are ratios
// within a round, and CPU for each call, which is that of all processes a host has started, also of
// those that it has forgotten.
//
// The parts, each by itself:
//
//	latency   initialize, the first call, calls at 1 and 16, where their CPU goes
//	churn     sessions that are opened, called once and deleted, 16 at once
//	idle      processes and memory with 0, 100 and 1,000 sessions that nobody uses
//	wake      the first call after a rest; of Dormouse by phase: function, box, server
//	loss      calls that were cut, and sessions after the host was stopped or killed
//	payload   answers of 1 KiB to 4 MiB, requests up to 1 MiB
//	growth    what sessions that have ended leave in memory and on disk
//	history   a call after 100,000 events and beside 100,000 sessions, on both stores
//	sockets   10,000 WebSocket clients that are silent
//	profile   CPU profiles of every program of Dormouse; only when it is named
//
// Each has bounded times, which -scale changes, and says when it did not reach its number in them. A
// peer that cannot be installed is left out by name, with the reason; a round of one that fails is in
// the notes.
//
// Everything is on loopback: no TLS, no network, no real Lambda, API Gateway or DynamoDB is in any
// figure. It installs the peers into .tools/bench and starts all that it measures as processes,
// each below a reaper of its own. It judges nothing: limits are the business of tests.
package main
