package upstream

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Config configures a [Vault]. Store and Secret are required.
type Config struct {
	Store     session.UpstreamTokens
	Providers map[string]Provider // see [ReadProviders]
	// Secret seals what is stored. Others also open it; it is then sealed anew.
	Secret []byte
	Others [][]byte
	// PublicURL is where browsers reach this endpoint; "" if that is not known. Messages
	// then have no URL.
	PublicURL string
	// Client makes requests to token endpoints. nil: one with limits.
	Client *http.Client
	Log    *slog.Logger // nil for none
}

// Vault has what principals have at third parties. It is safe for concurrent use.
type Vault struct {
	store     session.UpstreamTokens
	providers map[string]Provider
	rows      *session.Sealer
	asks      *session.Sealer
	mark      []byte // key of the names of asks
	publicURL string
	client    *http.Client
	log       *slog.Logger
}

// New makes a Vault. Errors: Invalid for a secret that is too short.
func New(c Config) (*Vault, error) {
	rows, err := session.NewSealer("upstream token", c.Secret, c.Others...)
	if err != nil {
		return nil, err
	}
	asks, err := session.NewSealer("upstream ask", c.Secret, c.Others...)
	if err != nil {
		return nil, err
	}
	mark := sha256.Sum256(append([]byte("dormouse upstream ask name v1\x00"), c.Secret...))
	v := &Vault{
		store: c.Store, providers: c.Providers, rows: rows, asks: asks, mark: mark[:], publicURL: c.PublicURL,
		client: c.Client, log: cmp.Or(c.Log, slog.New(slog.DiscardHandler)),
	}
	if v.client == nil {
		v.client = &http.Client{Timeout: askWithin, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	return v, nil
}

// Times of a token.
const (
	// Early is how long before its end a token is renewed.
	Early = time.Minute
	// askWithin bounds one request to a third party.
	askWithin = 10 * time.Second
	// busyFor is how long others wait for the one that asks the third party. If that one
	// has died, another asks.
	busyFor = 15 * time.Second
	// againAfter is how long nobody asks a third party that did not answer.
	againAfter = 5 * time.Second
	look       = 100 * time.Millisecond
)

// MaxSecret bounds what a user has at a third party, in bytes.
const MaxSecret = 16 << 10

// held is what is sealed in a row.
type held struct {
	Value   string `json:"v"`
	Refresh string `json:"r,omitempty"`
}

// place names a row.
type place struct{ tenant, principal, provider string }

func (p place) id() string { return session.UpstreamTokenID(p.tenant, p.principal, p.provider) }

// owner is the additional data of the seal.
func (p place) owner() []byte { return fmt.Appendf(nil, "%q %q %q", p.tenant, p.principal, p.provider) }

func placeOf(t session.UpstreamToken) place { return place{t.Tenant, t.Principal, t.Provider} }

// Missing is what a principal has to connect.
type Missing struct {
	Provider string
	rev      int64 // of the row that is of no use, 0 for none
}

// Get returns what a principal has at the providers, by name, and the providers where it
// has nothing that is good. A token that has ended, or does so within [Early], is renewed
// first. Cost: a read for each provider; two writes to renew a token.
//
// Errors: Unavailable.
func (v *Vault) Get(ctx context.Context, tenant, principal string, providers []string) (has map[string]session.Secret, missing []Missing, err error) {
	for _, name := range providers {
		at := place{tenant, principal, name}
		s, rev, err := v.get(ctx, at)
		switch {
		case err != nil:
			return nil, nil, err
		case s == nil:
			missing = append(missing, Missing{name, rev})
		default:
			if has == nil {
				has = map[string]session.Secret{}
			}
			has[name] = *s
		}
	}
	return has, missing, nil
}

// Secrets implements [session.Secrets].
func (v *Vault) Secrets(ctx context.Context, w session.Want) (map[string]session.Secret, error) {
	has, missing, err := v.Get(ctx, w.Tenant, w.Principal, w.Providers)
	if err == nil && w.Need && len(missing) > 0 {
		err = v.Ask(Asked{Tenant: w.Tenant, Principal: w.Principal, Server: w.Server, Session: w.Session}, missing)
	}
	return has, err
}

// get returns nil if there is nothing good; rev is then the revision of the row.
func (v *Vault) get(ctx context.Context, at place) (*session.Secret, int64, error) {
	for begun := time.Now(); ; {
		row, h, err := v.read(ctx, at)
		if err != nil {
			return nil, 0, err
		}
		now := time.Now()
		good := h != nil && (row.Until.IsZero() || now.Before(row.Until))
		switch {
		case good && (row.Until.IsZero() || now.Before(row.Until.Add(-Early))):
			return v.secret(row, h), row.Rev, nil
		case !v.renewable(at, row, h):
			if good {
				return v.secret(row, h), row.Rev, nil
			}
			return nil, row.Rev, nil
		case now.Before(row.Busy):
			if good {
				return v.secret(row, h), row.Rev, nil
			}
			if now.Sub(begun) > busyFor {
				return nil, 0, unavailable(at.provider)
			}
			if err := rest(ctx, look); err != nil {
				return nil, 0, err
			}
			continue
		}
		done, err := v.renew(ctx, row, h)
		if good && session.CodeOf(err) == session.Unavailable {
			return v.secret(row, h), row.Rev, nil
		}
		if err != nil {
			return nil, 0, err
		}
		if !done && now.Sub(begun) > busyFor {
			return nil, 0, unavailable(at.provider)
		}
	}
}

func (v *Vault) secret(row session.UpstreamToken, h *held) *session.Secret {
	return &session.Secret{Value: h.Value, Until: row.Until}
}

// renewable reports whether the third party can be asked for a new token without the
// user.
func (v *Vault) renewable(at place, row session.UpstreamToken, h *held) bool {
	if h == nil {
		return false
	}
	p := v.providers[at.provider]
	return p.oauth() && h.Refresh != "" && !row.Until.IsZero()
}

func unavailable(provider string) *session.Error {
	return session.Errorf(session.Unavailable, "%s does not answer, and its token has expired; try again in a few minutes", provider)
}

// read returns the row of a place, zero if there is none, and what is sealed in it, nil
// if that cannot be opened. It seals anew what another secret has sealed.
func (v *Vault) read(ctx context.Context, at place) (session.UpstreamToken, *held, error) {
	row, err := v.store.UpstreamToken(ctx, at.id())
	if errors.Is(err, session.NotFound) {
		return session.UpstreamToken{}, nil, nil
	}
	if err != nil {
		return session.UpstreamToken{}, nil, err
	}
	plain, ok, old := v.rows.OpenFor(at.owner(), row.Sealed)
	var h held
	if !ok || json.Unmarshal(plain, &h) != nil || h.Value == "" {
		return row, nil, nil
	}
	if old {
		row.Sealed = v.rows.SealFor(at.owner(), plain)
		if err := v.store.SaveUpstreamToken(ctx, row); err == nil {
			row.Rev++
		} else if !errors.Is(err, session.Conflict) {
			v.log.WarnContext(ctx, "a token could not be sealed anew", "provider", at.provider, "error", err)
		}
	}
	return row, &h, nil
}

// renew has the third party renew a token. Only one caller at a time does so: done is
// false if another was first.
func (v *Vault) renew(ctx context.Context, row session.UpstreamToken, h *held) (done bool, err error) {
	row.Busy = time.Now().Add(busyFor)
	if err := v.save(ctx, &row); err != nil {
		return false, unlessTaken(err)
	}
	// The token may be used up even if the client has gone, so this goes on.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), busyFor)
	defer cancel()
	p := v.providers[row.Provider]
	got, err := v.refresh(ctx, p, h.Refresh)
	row.Busy = time.Time{}
	switch {
	case session.CodeOf(err) == session.Unauthenticated:
		v.log.WarnContext(ctx, "a third party has refused to renew a token; its user is asked again", "provider", row.Provider, "tenant", row.Tenant, "error", err)
		row.Sealed, row.Until = "", time.Time{}
	case err != nil:
		v.log.WarnContext(ctx, "a token could not be renewed", "provider", row.Provider, "tenant", row.Tenant, "error", err)
		row.Busy = time.Now().Add(againAfter)
	default:
		got.Refresh = cmp.Or(got.Refresh, h.Refresh)
		v.fill(&row, got)
	}
	saved := unlessTaken(v.save(ctx, &row))
	if saved == nil && session.CodeOf(err) == session.Unavailable {
		return true, unavailable(row.Provider).Because(err)
	}
	return true, saved
}

func (v *Vault) save(ctx context.Context, row *session.UpstreamToken) error {
	err := v.store.SaveUpstreamToken(ctx, *row)
	if err == nil {
		row.Rev++
	}
	return err
}

// unlessTaken drops the error of a writer that was not the first.
func unlessTaken(err error) error {
	if errors.Is(err, session.Conflict) || errors.Is(err, session.NotFound) {
		return nil
	}
	return err
}

// fill puts a token into a row.
func (v *Vault) fill(row *session.UpstreamToken, t token) {
	plain, err := json.Marshal(held{t.Value, t.Refresh})
	if err != nil {
		panic("upstream: " + err.Error()) // texts can always be marshalled
	}
	row.Sealed, row.Until, row.Changed, row.Expires = v.rows.SealFor(placeOf(*row).owner(), plain), t.Until, time.Now(), time.Time{}
	if t.Refresh == "" {
		row.Expires = t.Until
	}
}

// Put stores what a principal has at a provider, and replaces what was there.
//
// Errors: Invalid for an empty or overlong value, Unavailable.
func (v *Vault) Put(ctx context.Context, tenant, principal, provider, value string) error {
	return v.put(ctx, place{tenant, principal, provider}, token{Value: value})
}

func (v *Vault) put(ctx context.Context, at place, t token) error {
	if t.Value == "" || len(t.Value)+len(t.Refresh) > MaxSecret {
		return session.Errorf(session.Invalid, "the value for %s has %d bytes; it needs 1 to %d", at.provider, len(t.Value), MaxSecret)
	}
	for {
		row, err := v.store.UpstreamToken(ctx, at.id())
		there := err == nil
		switch {
		case errors.Is(err, session.NotFound):
			row = session.UpstreamToken{ID: at.id(), Tenant: at.tenant, Principal: at.principal, Provider: at.provider, Created: time.Now()}
		case err != nil:
			return err
		}
		row.Busy = time.Time{}
		v.fill(&row, t)
		if there {
			err = v.store.SaveUpstreamToken(ctx, row)
		} else {
			err = v.store.CreateUpstreamToken(ctx, row)
		}
		if !errors.Is(err, session.Conflict) && !errors.Is(err, session.NotFound) {
			return err
		}
		if err := rest(ctx, look/10); err != nil {
			return err
		}
	}
}

// Remove removes what a principal has at a provider. It reports whether there was
// something.
//
// Errors: Unavailable.
func (v *Vault) Remove(ctx context.Context, tenant, principal, provider string) (bool, error) {
	return Remove(ctx, v.store, tenant, principal, provider)
}

// Remove is [Vault.Remove] without a Vault: it needs no secret.
func Remove(ctx context.Context, store session.UpstreamTokens, tenant, principal, provider string) (bool, error) {
	for {
		row, err := store.UpstreamToken(ctx, session.UpstreamTokenID(tenant, principal, provider))
		if err != nil {
			return false, unlessTaken(err)
		}
		there := row.Sealed != ""
		row.Sealed, row.Expires = "", time.Now().Add(-time.Second)
		err = store.SaveUpstreamToken(ctx, row)
		if errors.Is(err, session.NotFound) {
			return false, nil
		}
		if !errors.Is(err, session.Conflict) {
			return there, err
		}
	}
}

func rest(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// askID names an ask. It is the same for all calls of a session that miss the same token.
func (v *Vault) askID(a Asked, rev int64) string {
	m := hmac.New(sha256.New, v.mark)
	_, _ = fmt.Fprintf(m, "%q %q %q %q %q %d", a.Tenant, a.Principal, a.Server, a.Provider, a.Session, rev)
	return base64.RawURLEncoding.EncodeToString(m.Sum(nil)[:15])
}
