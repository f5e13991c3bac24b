package meter

import (
	"math"
	"time"
)

// What a user would pick instead, as bills by published prices. Neither is what was
// measured: see the assumptions of each.

// AlwaysOn is supergateway (stateful) on Fargate, behind a load balancer, because it
// has neither TLS nor a second task's sessions. It keeps a process for each session,
// so that tasks follow from the sessions that are open at a time.
type AlwaysOn struct {
	Box       BoxSize
	SessionMB float64 // of a session's server; a Node server's PSS as it was measured
	LoadHour  float64 // US dollars of an Application Load Balancer with one unit of load
}

// Supergateway is a task of half a processor and 1 GB.
func Supergateway() AlwaysOn {
	return AlwaysOn{Box: BoxSize{VCPUs: 0.5, MemoryMB: 1024, Addresses: 1}, SessionMB: 28, LoadHour: 0.0225 + 0.008}
}

// Tasks is how many are needed for so many sessions at a time, 1 at least. A quarter
// of the memory is the gateway's own.
func (a AlwaysOn) Tasks(sessions float64) float64 {
	return max(1, math.Ceil(sessions*a.SessionMB/(a.Box.MemoryMB*3/4)))
}

// Cost of that time, in US dollars.
func (a AlwaysOn) Cost(p Prices, sessions float64, span time.Duration, outGB float64) float64 {
	u := Task(span.Seconds(), a.Box).Times(a.Tasks(sessions))
	u.OutGB = outGB
	return p.Cost(u) + a.LoadHour*span.Hours()
}

// DurableObject is a server written for Cloudflare's McpAgent, one object a session. It
// cannot run a stdio server. Prices in US dollars, of the paid plan, beyond what that
// includes.
type DurableObject struct {
	Date, Source   string
	Month          float64 // of the plan
	Request        float64 // of an object
	WorkerRequest  float64 // of the Worker before it
	WorkerCPU      float64 // of a millisecond
	GBSecond       float64
	RowWritten     float64
	StoredGB       float64 // a month
	MemoryGB       float64 // what a GB-second is billed for
	RowsOfCall     float64 // an event and what is known of the stream
	CPUOfCall      float64 // milliseconds of the Worker
	BytesOfSession float64
}

// McpAgent is the prices that Cloudflare publishes, and what a call is taken to be.
func McpAgent() DurableObject {
	const million = 1e6
	return DurableObject{
		Date: "2026-11-21", Source: "developers.cloudflare.com/durable-objects/platform/pricing and /workers/platform/pricing",
		Month: 5, Request: 0.15 / million, WorkerRequest: 0.30 / million, WorkerCPU: 0.02 / million,
		GBSecond: 12.50 / million, RowWritten: 1.00 / million, StoredGB: 0.20,
		MemoryGB: 0.128, RowsOfCall: 2, CPUOfCall: 2, BytesOfSession: 12 << 10,
	}
}

// Call is one tools/call that keeps the object busy for that time.
func (d DurableObject) Call(busy time.Duration) float64 {
	return d.Request + d.WorkerRequest + d.CPUOfCall*d.WorkerCPU + d.RowsOfCall*d.RowWritten + busy.Seconds()*d.MemoryGB*d.GBSecond
}

// Silent is so many sessions for a day.
func (d DurableObject) Silent(sessions int) float64 {
	return float64(sessions) * d.BytesOfSession / 1e9 * d.StoredGB * day.Hours() / month.Hours()
}
