package credentials

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
	"net/url"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Config configures a [Vault]. Store and Secret are required.
type Config struct {
	Store     storage.UpstreamTokens
	Providers map[string]Provider // the third parties by name, from [ReadProviders]
	// Secret seals the rows. A row that one of Others has sealed opens too, and is then
	// sealed anew.
	Secret []byte
	Others [][]byte
	// PublicURL is where browsers reach this endpoint; "" if that is not known. Without it, messages
	// have no URL.
	PublicURL string
	// SignsIn says that users sign in at this endpoint, so that their tokens can be exchanged.
	SignsIn bool
	// Client makes requests to token endpoints. nil: a client that follows no redirect and waits
	// for ten seconds at most.
	Client *http.Client
	Log    *slog.Logger // nil for none
}

// Vault keeps the keys and tokens that principals have at third parties. It is safe for
// concurrent use.
type Vault struct {
	config Config
	rows   *storage.Sealer
	asks   *storage.Sealer
	mark   []byte // the HMAC key with which askID makes ids
}

// New makes a Vault. Errors: Invalid for a secret that is too short.
func New(c Config) (*Vault, error) {
	rows, err := storage.NewSealer("upstream token", c.Secret, c.Others...)
	if err != nil {
		return nil, err
	}
	asks, err := storage.NewSealer("upstream ask", c.Secret, c.Others...)
	if err != nil {
		return nil, err
	}
	mark := sha256.Sum256(append([]byte("dormouse upstream ask name v1\x00"), c.Secret...))
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	if c.Client == nil {
		c.Client = &http.Client{Timeout: askWithin, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	return &Vault{config: c, rows: rows, asks: asks, mark: mark[:]}, nil
}

const (
	// Early is how long before its end a token is renewed.
	Early = time.Minute
	// askWithin bounds one request to a third party.
	askWithin = 10 * time.Second
	// busyFor is how long callers wait while one of them asks the third party, before another caller
	// asks.
	busyFor = 15 * time.Second
	// againAfter is how long no caller asks a third party that did not answer.
	againAfter = 5 * time.Second
	look       = 100 * time.Millisecond
)

// MaxSecret bounds a key or token of a user at a third party, in bytes.
const MaxSecret = 16 << 10

// held is the sealed content of a row.
type held struct {
	Value   string `json:"v,omitempty"`
	Refresh string `json:"r,omitempty"`
	// Refused, if not "", says why the third party gives no secret until the row's Until. If Refused
	// is set, Value is "".
	Refused string `json:"n,omitempty"`
}

// place names a row: what a principal of a tenant has at a provider.
type place struct{ tenant, principal, provider string }

func (p place) id() string { return storage.UpstreamTokenID(p.tenant, p.principal, p.provider) }

// owner returns what binds the content of a row to its place: the additional data of AES-GCM.
func (p place) owner() []byte { return fmt.Appendf(nil, "%q %q %q", p.tenant, p.principal, p.provider) }

func (p place) row() storage.UpstreamToken {
	return storage.UpstreamToken{ID: p.id(), Tenant: p.tenant, Principal: p.principal, Provider: p.provider, Created: time.Now()}
}

func placeOf(t storage.UpstreamToken) place { return place{t.Tenant, t.Principal, t.Provider} }

// Missing names a third party that a principal has to connect first.
type Missing struct {
	Provider string
	rev      int64  // revision of the row without a valid secret; 0: there is no row
	why      string // why the user cannot connect it; "": the user can
}

// Get returns what a principal has at the providers, by name, and the providers where it
// has nothing valid. It first renews a token that has ended or ends soon: [Early] before
// the end, or after half of the token's life if that is later. Cost: a read for each
// provider. A renewal costs two writes, and one by an exchange also a read.
//
// Errors: Unavailable.
func (v *Vault) Get(ctx context.Context, tenant, principal string, providers []string) (has map[string]storage.Secret, missing []Missing, err error) {
	for _, name := range providers {
		at := place{tenant, principal, name}
		s, lacks, err := v.get(ctx, at)
		switch {
		case err != nil:
			return nil, nil, err
		case s == nil:
			missing = append(missing, lacks)
		default:
			if has == nil {
				has = map[string]storage.Secret{}
			}
			has[name] = *s
		}
	}
	return has, missing, nil
}

// Secrets implements [storage.Secrets]. If w.Need is set and something is missing, the error is that
// of [Vault.Ask].
func (v *Vault) Secrets(ctx context.Context, w storage.Needs) (map[string]storage.Secret, error) {
	has, missing, err := v.Get(ctx, w.Tenant, w.Principal, w.Providers)
	if err == nil && w.Need && len(missing) > 0 {
		err = v.Ask(Asked{Tenant: w.Tenant, Principal: w.Principal, Server: w.Server, Session: w.Session}, missing)
	}
	return has, err
}

// get returns the secret that a principal has at a provider. Without a valid secret it returns
// nil, and what is missing.
func (v *Vault) get(ctx context.Context, at place) (*storage.Secret, Missing, error) {
	p := v.config.Providers[at.provider]
	if p.Exchange != nil {
		return v.exchanged(ctx, at, p)
	}
	return v.good(ctx, at, v.refreshing(p))
}

// asking asks a third party for a new token. Errors: Unauthenticated if the user has to
// connect it anew, Forbidden if that does not help, Unavailable.
type asking func(ctx context.Context) (token, error)

// renewal returns a function that asks for a new token without the user, or nil if there is no
// way to ask. Without a row, the argument row is zero and h is nil.
type renewal func(ctx context.Context, row storage.UpstreamToken, h *held) (asking, error)

// refreshing returns the renewal that uses refresh tokens.
func (v *Vault) refreshing(p Provider) renewal {
	return func(_ context.Context, row storage.UpstreamToken, h *held) (asking, error) {
		if h == nil || h.Refresh == "" || p.Token == "" || row.Until.IsZero() {
			return nil, nil
		}
		return func(ctx context.Context) (token, error) {
			t, err := v.ask(ctx, p, p.of(url.Values{"grant_type": {"refresh_token"}, "refresh_token": {h.Refresh}}))
			t.Refresh = cmp.Or(t.Refresh, h.Refresh)
			return t, err
		}, nil
	}
}

// good returns the secret of a row, and first renews it if it ends soon. It returns nil if there is
// no valid secret. The Missing has the revision of the row in both cases.
func (v *Vault) good(ctx context.Context, at place, renew renewal) (*storage.Secret, Missing, error) {
	for begun := time.Now(); ; {
		row, h, err := v.read(ctx, at)
		if err != nil {
			return nil, Missing{}, err
		}
		now, is := time.Now(), Missing{Provider: at.provider, rev: row.Rev}
		ends := !row.Until.IsZero()
		if h != nil && h.Refused != "" && now.Before(row.Until) {
			is.why = h.Refused
			return nil, is, nil
		}
		var has *storage.Secret
		if h != nil && h.Value != "" && (!ends || now.Before(row.Until)) {
			has = &storage.Secret{Value: h.Value, Until: row.Until}
		}
		if has != nil && (!ends || now.Before(renewAt(row)) || now.Before(row.Busy)) {
			return has, is, nil
		}
		if now.Before(row.Busy) {
			if now.Sub(begun) > busyFor {
				return nil, is, unavailable(at.provider)
			}
			if err := storage.Rest(ctx, look); err != nil {
				return nil, is, err
			}
			continue
		}
		ask, err := renew(ctx, row, h)
		if err == nil && ask == nil {
			return has, is, nil
		}
		var got *storage.Secret
		if err == nil {
			got, err = v.renew(ctx, at, row, ask)
		}
		switch {
		case got != nil:
			is.rev = row.Rev + 2 // the row was written twice: claimed, then filled
			return got, is, nil
		case has != nil && storage.CodeOf(err) == storage.Unavailable:
			return has, is, nil
		case err != nil:
			return nil, is, err
		case now.Sub(begun) > busyFor:
			return nil, is, unavailable(at.provider)
		}
	}
}

// renewAt is when a token is renewed: [Early] before its end or after half of its life,
// whichever is later.
func renewAt(row storage.UpstreamToken) time.Time {
	return row.Until.Add(-min(Early, row.Until.Sub(row.Changed)/2))
}

func unavailable(provider string) *storage.Error {
	return storage.Errorf(storage.Unavailable, "the token for %s cannot be renewed now, because its issuer does not answer; try again in a few minutes", provider)
}

// read returns the row of a place and the secret that is sealed in it. The row is zero if there is
// none; the secret is nil if it cannot be opened. read seals a row anew that one of [Config.Others]
// has sealed.
func (v *Vault) read(ctx context.Context, at place) (storage.UpstreamToken, *held, error) {
	row, err := v.config.Store.UpstreamTokens().Get(ctx, at.id())
	if errors.Is(err, storage.NotFound) {
		return storage.UpstreamToken{}, nil, nil
	}
	if err != nil {
		return storage.UpstreamToken{}, nil, err
	}
	plain, ok, old := v.rows.OpenFor(at.owner(), row.Sealed)
	var h held
	if !ok || json.Unmarshal(plain, &h) != nil || h.Value+h.Refused == "" {
		return row, nil, nil
	}
	if old {
		row.Sealed = v.rows.SealFor(at.owner(), plain)
		if err := v.save(ctx, &row); err != nil && !errors.Is(err, storage.Conflict) {
			v.config.Log.WarnContext(ctx, "a token could not be sealed anew", "provider", at.provider, "error", err)
		}
	}
	return row, &h, nil
}

// renew asks for a token and stores it. For each row only one caller at a time asks. renew returns
// nil if another caller was first, or if the third party gives no token, which the row then shows.
func (v *Vault) renew(ctx context.Context, at place, row storage.UpstreamToken, ask asking) (*storage.Secret, error) {
	row.Busy = time.Now().Add(busyFor)
	if err := v.claim(ctx, at, &row); err != nil {
		return nil, unlessTaken(err)
	}
	// The request to the third party may use up the refresh token, so renew goes on even if the
	// client has gone.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), busyFor)
	defer cancel()
	t, err := ask(ctx)
	row.Busy = time.Time{}
	var got *storage.Secret
	switch code := storage.CodeOf(err); {
	case code == storage.Unauthenticated:
		v.config.Log.WarnContext(ctx, "a third party has refused to renew a token; its user is asked again", "provider", row.Provider, "tenant", row.Tenant, "error", err)
		row.Sealed, row.Until = "", time.Time{}
	case code == storage.Forbidden:
		v.config.Log.WarnContext(ctx, "a token was not given", "provider", row.Provider, "tenant", row.Tenant, "error", err)
		v.fill(&row, held{Refused: messageOf(err)}, time.Now().Add(refusedFor))
	case err != nil:
		v.config.Log.WarnContext(ctx, "a token could not be renewed", "provider", row.Provider, "tenant", row.Tenant, "error", err)
		row.Busy = time.Now().Add(againAfter)
	default:
		v.fill(&row, held{Value: t.Value, Refresh: t.Refresh}, t.Until)
		got = &storage.Secret{Value: t.Value, Until: t.Until}
	}
	saved := v.save(ctx, &row)
	switch {
	case saved != nil:
		return nil, unlessTaken(saved)
	case storage.CodeOf(err) == storage.Unavailable:
		return nil, unavailable(row.Provider).Because(err)
	}
	return got, nil
}

// claim marks a row as busy. Errors: Conflict and NotFound if another caller was first.
func (v *Vault) claim(ctx context.Context, at place, row *storage.UpstreamToken) error {
	isNew, busy := row.Rev == 0, row.Busy
	if isNew {
		*row = at.row()
		row.Busy = busy
	}
	if isNew || !row.Expires.IsZero() { // the row must still exist when the answer comes
		row.Expires = busy.Add(refusedFor)
	}
	return v.save(ctx, row)
}

func messageOf(err error) string {
	if e, ok := errors.AsType[*storage.Error](err); ok {
		return e.Message
	}
	return ""
}

// save writes a row; a new one has no revision yet.
func (v *Vault) save(ctx context.Context, row *storage.UpstreamToken) error {
	write := v.config.Store.UpstreamTokens().Save
	if row.Rev == 0 {
		write = v.config.Store.UpstreamTokens().Create
	}
	err := write(ctx, *row)
	if err == nil {
		row.Rev++
	}
	return err
}

// unlessTaken returns nil if err says that another writer was first, and otherwise err.
func unlessTaken(err error) error {
	if errors.Is(err, storage.Conflict) || errors.Is(err, storage.NotFound) {
		return nil
	}
	return err
}

// fill puts a secret into a row. The secret ends at the time until, which is zero if it does not end
// by itself.
func (v *Vault) fill(row *storage.UpstreamToken, h held, until time.Time) {
	plain, err := json.Marshal(h)
	if err != nil {
		panic("credentials: " + err.Error()) // strings always marshal
	}
	row.Sealed, row.Until, row.Changed, row.Expires = v.rows.SealFor(placeOf(*row).owner(), plain), until, time.Now(), time.Time{}
	switch {
	case h.Refresh == "":
		row.Expires = until
	case row.Provider == SignedIn:
		row.Expires = time.Now().Add(signedInFor)
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
		return storage.Errorf(storage.Invalid, "the value for %s has %d bytes; it needs 1 to %d", at.provider, len(t.Value), MaxSecret)
	}
	for {
		row, err := v.config.Store.UpstreamTokens().Get(ctx, at.id())
		switch {
		case errors.Is(err, storage.NotFound):
			row = at.row()
		case err != nil:
			return err
		}
		row.Busy = time.Time{}
		v.fill(&row, held{Value: t.Value, Refresh: t.Refresh}, t.Until)
		err = v.save(ctx, &row)
		if !errors.Is(err, storage.Conflict) && !errors.Is(err, storage.NotFound) {
			return err
		}
		if err := storage.Rest(ctx, look/10); err != nil {
			return err
		}
	}
}

// Remove removes what a principal has at a provider. If the provider gives it in exchange
// for the token of the sign-in, Remove removes that token too. It reports whether there
// was something at the provider.
//
// Errors: Unavailable.
func (v *Vault) Remove(ctx context.Context, tenant, principal, provider string) (bool, error) {
	if v.config.Providers[provider].Exchange != nil {
		if _, err := Remove(ctx, v.config.Store, tenant, principal, SignedIn); err != nil {
			return false, err
		}
	}
	return Remove(ctx, v.config.Store, tenant, principal, provider)
}

// Remove removes only what a principal has at this provider, and reports whether there was
// something. Unlike [Vault.Remove], it needs no secret.
func Remove(ctx context.Context, store storage.UpstreamTokens, tenant, principal, provider string) (bool, error) {
	for {
		row, err := store.UpstreamTokens().Get(ctx, storage.UpstreamTokenID(tenant, principal, provider))
		if err != nil {
			return false, unlessTaken(err)
		}
		there := row.Sealed != ""
		row.Sealed, row.Expires = "", time.Now().Add(-time.Second)
		err = store.UpstreamTokens().Save(ctx, row)
		if errors.Is(err, storage.NotFound) {
			return false, nil
		}
		if !errors.Is(err, storage.Conflict) {
			return there, err
		}
	}
}

// askID returns the elicitation id for an Asked. All calls of a session that lack the same token
// have the same id.
func (v *Vault) askID(a Asked, rev int64) string {
	m := hmac.New(sha256.New, v.mark)
	_, _ = fmt.Fprintf(m, "%q %q %q %q %q %d", a.Tenant, a.Principal, a.Server, a.Provider, a.Session, rev)
	return base64.RawURLEncoding.EncodeToString(m.Sum(nil)[:15])
}
