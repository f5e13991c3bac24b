// Command bench measures Dormouse and its alternatives side by side, in one run: the same clients,
// the same hosted server, the same machine. Each way to host a server is a peer. A round measures
// every peer once, in a random order. Absolute values hold for one machine with all the programs on
// it. Compare only ratios within a round, and the CPU time for each call.
//
// Clients, hosts and servers are one cpu group of the kernel, which gets nearly all of the
// processors; that requires root. CPU times are what the kernel has counted for the group, also for
// processes that a host has started and forgotten. No program gets a real-time priority: with 16
// clients, such a priority makes threads of Go spin against each other. Before a host is measured,
// it answers calls until it gets no faster.
//
// The parts, each of which runs by itself:
//
//	latency   initialize, the first call, calls of 1 and 16 clients, where their CPU goes
//	churn     sessions that are opened, called once and deleted, 16 at once
//	idle      processes and memory with 0, 100 and 1,000 sessions that are not used
//	wake      the first call after a rest
//	loss      calls that were cut, and sessions after the host was stopped or killed
//	scale     servers, sessions, events, held streams and WebSockets at each power of ten; only
//	          when it is named
//	one       the first list of 50 and 200 servers at /mcp, processes and memory after a call of
//	          each server, calls at /mcp and at a server's own address; only when it is named
//	profile   CPU profiles of Dormouse; only when it is named
//
// Each part has a limit of time, which -scale changes. A part that does not reach its number in
// that time says so. A peer that cannot be installed is left out by name, with the reason. If a
// peer fails in a round, the notes say so.
//
// Everything is on loopback: no value includes TLS, a network, or the real Lambda, API Gateway or
// DynamoDB. The program installs the peers into .tools/bench. It starts everything that it measures
// as processes, each below a reaper: a parent that waits for all its descendants. It does not judge
// the values.
package main
