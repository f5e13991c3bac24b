package quota

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Report has the limits and the use of a tenant, for an operator.
type Report struct {
	Tenant string          `json:"tenant"`
	Own    json.RawMessage `json:"own,omitempty"` // limits that an operator has set for the tenant
	Month  string          `json:"month"`         // YYYY-MM, UTC
	USD    float64         `json:"usd"`           // used in Month; use of the last minute may be missing, up to a cent for each instance
}

// Show reads the account of a tenant. A tenant without an account has used nothing. Errors:
// Unavailable.
func Show(ctx context.Context, store storage.Values, tenant string) (Report, error) {
	_, row, err := loadRow[accountRow](ctx, store, accountKey(tenant))
	return row.report(tenant), err
}

func (r accountRow) report(tenant string) Report {
	month, spent := r.Used.in(time.Now())
	return Report{Tenant: tenant, Own: r.Limits, Month: month, USD: float64(spent) / nanos}
}

// Set changes limits of a tenant, which replace those of the servers file. The argument change is a
// JSON object in the form of [Limits]. A member null means no limit, and a member "file" the limit of
// the servers file. All instances follow within 30 seconds.
//
// Errors: Invalid for what is no limit, TooLarge, Unavailable.
func Set(ctx context.Context, store storage.Values, tenant string, change []byte) (Report, error) {
	wanted, err := readObject(change)
	if err != nil {
		return Report{}, storage.Errorf(storage.Invalid, "limits: %v", err)
	}
	var report Report
	err = edit(ctx, store, accountKey(tenant), accountLife, func(row accountRow) (accountRow, bool, error) {
		own, _ := readObject(row.Limits) // a row that cannot be decoded has no limits
		own = own.known().over(wanted).withoutFile()
		if _, err := own.limits(); err != nil {
			return row, false, storage.Errorf(storage.Invalid, "%v", err)
		}
		row.Limits, row.Writer = own.text(), storage.NewNonce()
		report = row.report(tenant)
		return row, true, list(ctx, store, tenant, len(own) > 0)
	})
	if errors.Is(err, storage.Conflict) {
		err = crowded(tenant)
	}
	return report, err
}

// listKey is the key of the list of tenants that have limits of their own.
func listKey() storage.ValueKey {
	return storage.ValueKey{Scope: storage.ValueOfServer, Name: "quota.tenants"}
}

// Limited returns the tenants for which an operator has set limits, in order. Errors:
// Unavailable.
func Limited(ctx context.Context, store storage.Values) ([]string, error) {
	_, tenants, err := loadRow[[]string](ctx, store, listKey())
	return tenants, err
}

// list puts a tenant into the list of those with limits, or takes it out. A full list stays as it
// is.
func list(ctx context.Context, store storage.Values, tenant string, has bool) error {
	err := edit(ctx, store, listKey(), 0, func(tenants []string) ([]string, bool, error) {
		i, listed := slices.BinarySearch(tenants, tenant)
		switch {
		case listed == has:
			return nil, false, nil
		case has:
			return slices.Insert(tenants, i, tenant), true, nil
		default:
			return slices.Delete(tenants, i, i+1), true, nil
		}
	})
	switch {
	case errors.Is(err, storage.TooLarge):
		return nil
	case errors.Is(err, storage.Conflict):
		return crowded(tenant)
	}
	return err
}
