package main

import (
	"math"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/store/meter"
	"github.com/dormouse-mcp/dormouse/shared/store/meter/metertest"
)

// This file computes what alternatives cost by published prices. Nothing was measured; each type
// names its assumptions.

// alwaysOn is supergateway (stateful) on Fargate. It stands behind a load balancer, because it
// has no TLS and one task does not know another task's sessions. It keeps a process for each
// session, so the number of tasks follows from the number of open sessions.
type alwaysOn struct {
	Box       meter.BoxSize
	SessionMB float64 // memory of a session's server: the measured PSS of a Node server
	LoadHour  float64 // US dollars of an Application Load Balancer with one unit of load
}

// supergateway returns an alwaysOn with tasks of half a processor and 1 GB.
func supergateway() alwaysOn {
	return alwaysOn{Box: meter.BoxSize{VCPUs: 0.5, MemoryMB: 1024, Addresses: 1}, SessionMB: 28, LoadHour: 0.0225 + 0.008}
}

// Tasks returns how many tasks serve this many open sessions, at least 1. The gateway
// itself takes a quarter of the memory.
func (a alwaysOn) Tasks(sessions float64) float64 {
	return max(1, math.Ceil(sessions*a.SessionMB/(a.Box.MemoryMB*3/4)))
}

// Cost returns the cost of a period, in US dollars.
func (a alwaysOn) Cost(p meter.Prices, sessions float64, span time.Duration, outGB float64) float64 {
	u := meter.Task(span.Seconds(), a.Box).Times(a.Tasks(sessions))
	u.OutGB = outGB
	return p.Cost(u) + a.LoadHour*span.Hours()
}

// durableObject is a server written for Cloudflare's McpAgent, with one object for each
// session. It cannot run a stdio server. Prices are in US dollars: what the paid plan charges for
// more than its included amounts.
type durableObject struct {
	Date, Source   string
	Month          float64 // price of the plan
	Request        float64 // one request to an object
	WorkerRequest  float64 // one request to the Worker before it
	WorkerCPU      float64 // one millisecond of the Worker
	GBSecond       float64
	RowWritten     float64
	StoredGB       float64 // one GB for a month
	MemoryGB       float64 // memory that is billed for an object
	RowsOfCall     float64 // rows that a call writes: an event, and the state of the stream
	CPUOfCall      float64 // milliseconds of the Worker in a call
	BytesOfSession float64
}

// mcpAgent returns the prices that Cloudflare publishes, and the assumptions about a call.
func mcpAgent() durableObject {
	const million = 1e6
	return durableObject{
		Date: "2026-11-21", Source: "developers.cloudflare.com/durable-objects/platform/pricing and /workers/platform/pricing",
		Month: 5, Request: 0.15 / million, WorkerRequest: 0.30 / million, WorkerCPU: 0.02 / million,
		GBSecond: 12.50 / million, RowWritten: 1.00 / million, StoredGB: 0.20,
		MemoryGB: 0.128, RowsOfCall: 2, CPUOfCall: 2, BytesOfSession: 12 << 10,
	}
}

// Call returns the cost of one tools/call that keeps the object busy for a time, in US
// dollars.
func (d durableObject) Call(busy time.Duration) float64 {
	return d.Request + d.WorkerRequest + d.CPUOfCall*d.WorkerCPU + d.RowsOfCall*d.RowWritten + busy.Seconds()*d.MemoryGB*d.GBSecond
}

// Silent returns the cost of sessions that send nothing for a day, in US dollars.
func (d durableObject) Silent(sessions int) float64 {
	return float64(sessions) * d.BytesOfSession / 1e9 * d.StoredGB * metertest.Day.Hours() / metertest.Month.Hours()
}
