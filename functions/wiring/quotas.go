package wiring

import (
	"cmp"
	"context"

	"github.com/dormouse-mcp/dormouse/shared/access/quota"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet/ecs"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
)

// limit sets f.Quotas to the limits in the servers file, if it has any. Then f.Meter also charges
// tenants for what it counts.
func (f *Function) limit() (err error) {
	if f.Servers == nil {
		return nil
	}
	limits := f.Servers.Limits()
	if limits == nil {
		return nil // saves the time to read the prices
	}
	f.Quotas, err = quota.New(quota.Config{Store: f.Store, Limits: limits, Prices: meter.Published(), Log: f.Log})
	if f.Quotas != nil {
		f.Meter = f.Quotas.Meter(f.Meter)
	}
	return err
}

// Stopped charges the tenant of a box for a task that has stopped.
func (f *Function) Stopped(t fleet.Status) {
	if f.Quotas == nil || t.Started.IsZero() {
		return
	}
	tenant, server := storage.BoxID(t.Box).Parts()
	f.Quotas.ChargeTask(tenant, t.ID, meter.Task(t.Stopped.Sub(t.Started).Seconds(), BoxSize(f.Servers, server)))
}

// Flush stores what tenants have used. Call it before the process ends. The code of an error is
// Unavailable.
func (f *Function) Flush(ctx context.Context) error {
	if f.Quotas == nil {
		return nil
	}
	return f.Quotas.Flush(ctx)
}

// BoxSize returns the size of the Fargate task for a server's box.
func BoxSize(servers *serversfile.File, server string) meter.BoxSize {
	size := meter.DefaultBox()
	s, _ := servers.Server(server)
	f, err := ecs.Size{CPUs: cmp.Or(s.Box.CPUs, size.VCPUs), MemoryMB: cmp.Or(s.Box.MemoryMB, int(size.MemoryMB))}.Fargate()
	if err == nil { // on an error, Fargate has no task of this size
		size.VCPUs, size.MemoryMB = f.CPUs, float64(f.MemoryMB)
	}
	return size
}
