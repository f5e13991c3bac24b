package quota

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Report is what an operator sees of a tenant.
type Report struct {
	Tenant string          `json:"tenant"`
	Own    json.RawMessage `json:"own,omitempty"` // limits that an operator has set for the tenant
	Used   Used            `json:"used"`          // what the tenant has used; each instance may still hold back up to a cent or a minute of it
}

// Show reads the account of a tenant. A tenant without one has used nothing. Errors:
// Unavailable.
func Show(ctx context.Context, store session.Values, tenant string) (Report, error) {
	_, row, err := readAccount(ctx, store, tenant)
	return Report{Tenant: tenant, Own: row.Limits, Used: row.Used.at(time.Now())}, err
}

func readAccount(ctx context.Context, store session.Values, tenant string) (session.Value, accountRow, error) {
	var row accountRow
	v, err := store.LoadValue(ctx, accountKey(tenant))
	if err == nil && len(v.Data) > 0 {
		err = json.Unmarshal(v.Data, &row)
	}
	return v, row, err
}

// Set changes limits of a tenant: change is a JSON object in the form of [Settings], whose
// members replace those of the servers file. A member null removes the limit; a member
// "file" gives the limit of the file back. All instances follow within 30 seconds.
//
// Errors: Invalid for what is no limit, TooLarge, Unavailable.
func Set(ctx context.Context, store session.Values, tenant string, change []byte) (Report, error) {
	wanted, err := readObject(change)
	if err != nil {
		return Report{}, session.Errorf(session.Invalid, "limits: %v", err)
	}
	for tries := range maxTries {
		v, row, err := readAccount(ctx, store, tenant)
		if err != nil {
			return Report{}, err
		}
		own := object{}
		if len(row.Limits) > 0 {
			if own, err = readObject(row.Limits); err != nil {
				own = object{}
			}
		}
		own = own.over(wanted).without()
		if _, err := own.settings(); err != nil {
			return Report{}, session.Errorf(session.Invalid, "%v", err)
		}
		if row.Limits = own.text(); len(row.Limits) > MaxSettings {
			return Report{}, session.Errorf(session.TooLarge, "the limits of tenant %s have %d bytes; at most %d are kept", tenant, len(row.Limits), MaxSettings)
		}
		if err := list(ctx, store, tenant, len(own) > 0); err != nil {
			return Report{}, err
		}
		row.Writer = session.NewNonce()
		if v.Data, err = json.Marshal(row); err != nil {
			return Report{}, fmt.Errorf("limits: %w", err)
		}
		v.Expires = time.Now().Add(accountLife)
		if _, err = store.SaveValue(ctx, v); err == nil {
			return Report{Tenant: tenant, Own: row.Limits, Used: row.Used.at(time.Now())}, nil
		}
		if !errors.Is(err, session.Conflict) {
			return Report{}, err
		}
		if err := pause(ctx, tries); err != nil {
			return Report{}, err
		}
	}
	return Report{}, session.Errorf(session.Unavailable, "too many requests change the account of tenant %s at once; try again", tenant)
}

// listKey is the key of the names of the tenants with limits of their own, a JSON array. The
// store cannot list accounts.
func listKey() session.ValueKey {
	return session.ValueKey{Scope: session.ValueOfServer, Name: "quota.tenants"}
}

// Limited returns the tenants for which an operator has set limits, in order. Errors:
// Unavailable.
func Limited(ctx context.Context, store session.Values) ([]string, error) {
	_, tenants, err := loadRow[[]string](ctx, store, listKey())
	return tenants, err
}

// list puts a tenant into the list of those with limits, or takes it out. A list that has
// no room stays as it is.
func list(ctx context.Context, store session.Values, tenant string, has bool) error {
	for tries := range maxTries {
		v, tenants, err := loadRow[[]string](ctx, store, listKey())
		if err != nil {
			return err
		}
		i, listed := slices.BinarySearch(tenants, tenant)
		switch {
		case listed == has:
			return nil
		case has:
			tenants = slices.Insert(tenants, i, tenant)
		default:
			tenants = slices.Delete(tenants, i, i+1)
		}
		if v.Data, err = json.Marshal(tenants); err != nil {
			return fmt.Errorf("limits: %w", err)
		}
		_, err = store.SaveValue(ctx, v)
		if err == nil || errors.Is(err, session.TooLarge) {
			return nil
		}
		if !errors.Is(err, session.Conflict) {
			return err
		}
		if err := pause(ctx, tries); err != nil {
			return err
		}
	}
	return session.Errorf(session.Unavailable, "too many requests change the account of tenant %s at once; try again", tenant)
}

// fromFile is written in place of a limit to return to that of the servers file.
const fromFile = "file"

// without removes members that are fromFile, and objects without any other member.
func (o object) without() object {
	left := object{}
	for key, value := range o {
		var text string
		if json.Unmarshal(value, &text) == nil && text == fromFile {
			continue
		}
		if inner, err := readObject(value); err == nil {
			if inner = inner.without(); len(inner) == 0 {
				continue
			}
			value = inner.text()
		}
		left[key] = value
	}
	return left
}

// InForce returns the limits of a tenant: those of the servers file, with the tenant's own
// ones over them.
func InForce(s Sections, own []byte) (Settings, error) {
	file, _, err := Read(s)
	if err != nil || len(own) == 0 {
		return file, err
	}
	all, err := file.object()
	if err != nil {
		return Settings{}, err
	}
	more, err := readObject(own)
	if err != nil {
		return Settings{}, err
	}
	return all.over(more).settings()
}

// Change turns words of the form KEY=VALUE into the JSON for [Set]. A key is one of
// [Limits], such as principal, or tools.NAME or weights.NAME. A value may also be "off"
// or "file". The limits are those of a server, or of all servers for "".
//
// Errors: Invalid for a word that has no "=".
func Change(server string, words []string) ([]byte, error) {
	change := object{}
	for _, word := range words {
		key, value, ok := strings.Cut(word, "=")
		if !ok || key == "" || value == "" {
			return nil, session.Errorf(session.Invalid, "%q sets nothing; write KEY=VALUE, such as month_usd=20 or principal=60/m", clip(word))
		}
		text := json.RawMessage(value)
		switch {
		case value == off:
			text = json.RawMessage("null")
		case !isNumber(value):
			text = quoted(value)
		}
		if of, name, nested := strings.Cut(key, "."); nested {
			key, text = of, object{name: text}.text()
		}
		change = change.over(object{key: text})
	}
	if server != "" {
		change = object{"servers": object{server: change.text()}.text()}
	}
	return change.text(), nil
}

func isNumber(text string) bool {
	_, err := strconv.ParseFloat(text, 64)
	return err == nil && json.Valid([]byte(text))
}

func quoted(text string) json.RawMessage {
	out, err := json.Marshal(text)
	if err != nil {
		panic("quota: " + err.Error()) // texts always encode
	}
	return out
}
