package resourceserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// AccessLife is how long an access token of package authserver is valid.
const AccessLife = time.Hour

// tokenPrefix is the prefix of access tokens that package authserver issues.
const tokenPrefix = "da_"

// Token is the contents of an access token that package authserver has issued.
type Token struct {
	Grant     string   `json:"g,omitempty"` // ID of the grant; "" for a token that an API key was exchanged for
	Key       string   `json:"k,omitempty"` // ID of the API key that was exchanged for the token; "" for none
	Tenant    string   `json:"t"`
	Principal string   `json:"p"`
	Server    string   `json:"s"` // the only server that the token is for, or the address of a group
	Scopes    []string `json:"c"`
	Props     []byte   `json:"d,omitempty"`
	ToolRules []string `json:"r,omitempty"` // as in storage.Identity; nil for a token with Key, which fits all rules
	Expires   int64    `json:"x"`           // Unix seconds
	// Claims are the claims of the user that the rules of a group's servers read; see [IsGroup].
	Claims json.RawMessage `json:"m,omitempty"`
}

// NewTokenSealer returns the sealer of access tokens; the parameters are as for
// [storage.NewSealer].
func NewTokenSealer(secret []byte, others ...[]byte) (*storage.Sealer, error) {
	return storage.NewSealer("access token", secret, others...)
}

// SealToken returns the access token with these contents.
func SealToken(sealer *storage.Sealer, t Token) string {
	return tokenPrefix + sealer.SealJSON(t)
}

// OpenToken returns the contents of an access token, also of one that has expired.
func OpenToken(sealer *storage.Sealer, token string) (t Token, ok bool) {
	sealed, ok := strings.CutPrefix(token, tokenPrefix)
	return t, ok && len(token) <= maxToken && sealer.OpenJSON(sealed, &t)
}

// IssuedConfig configures an [Issued]. All fields are required. Settings.Issuer is not
// used: the issuer is the endpoint itself.
type IssuedConfig struct {
	Settings
	Servers []string
	Sealer  *storage.Sealer // the result of NewTokenSealer
	Store   storage.Values  // has the revoked grants
	Keys    *apikey.Keys    // confirms API keys that were exchanged for tokens
}

// Issued verifies the tokens of this endpoint's own authorization server (package authserver). It
// opens a token without the store, and reads the list of revoked grants at most every 30 seconds.
// It is safe for concurrent use.
type Issued struct {
	resources
	sealer *storage.Sealer
	store  storage.Values
	keys   *apikey.Keys

	mu      sync.Mutex // held while the list is read, so that others wait for it
	revoked revokedGrants
	read    time.Time
}

// revokedFor is how long a list of revoked grants is used before it is read again.
const revokedFor = 30 * time.Second

// NewIssued makes an Issued. It makes no request. The error names the wrong setting.
func NewIssued(c IssuedConfig) (*Issued, error) {
	s, err := c.Settings.Complete(c.Servers)
	if err == nil {
		err = s.checkRoot()
	}
	if err != nil {
		return nil, err
	}
	s.Issuer, s.Audiences = s.PublicURL, nil
	return &Issued{resources: resources{s}, sealer: c.Sealer, store: c.Store, keys: c.Keys}, nil
}

// issuedCredential is the prefix of the credential of a token that has a grant. The grant's ID, the
// tenant and the time of issue follow, with colons between them.
const issuedCredential = "grant:"

func credentialOf(t Token) string {
	if t.Key != "" {
		return t.Key
	}
	return fmt.Sprint(issuedCredential, t.Grant, ":", t.Tenant, ":", t.Expires-int64(AccessLife.Seconds()))
}

// ConfirmMembers checks a token that was valid earlier, and returns the servers that it is still good
// for. These are all of the argument servers, unless the token was exchanged for an API key. The
// argument text is the Credential of the caller's identity. Errors are as for VerifyGroup.
func (s *Issued) ConfirmMembers(ctx context.Context, text, group string, servers []string) ([]string, error) {
	rest, ok := strings.CutPrefix(text, issuedCredential)
	if !ok {
		return s.keys.ConfirmMembers(ctx, text, group, servers)
	}
	grant, rest, _ := strings.Cut(rest, ":")
	end := strings.LastIndexByte(rest, ':') // the tenant may have colons
	tenant, at := rest[:max(0, end)], rest[end+1:]
	issued, ok := unix(at)
	if !ok {
		return nil, badToken("this connection was opened with another kind of credential")
	}
	if time.Since(issued) >= AccessLife { // the list of revoked grants has only those of tokens that have not expired
		return nil, badToken("it has expired")
	}
	list, err := s.list(ctx)
	if err != nil {
		return nil, err
	}
	if list.has(grant, tenant, issued) {
		return nil, badToken("it was revoked")
	}
	return servers, nil
}

// list returns the revoked grants as they were at most revokedFor ago.
func (s *Issued) list(ctx context.Context) (revokedGrants, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Sub(s.read) < revokedFor {
		return s.revoked, nil
	}
	v, err := s.store.LoadValue(ctx, revokedKey())
	if err == nil {
		s.revoked, err = parseRevoked(v.Data)
	}
	if err != nil {
		return revokedGrants{}, storage.Errorf(storage.Unavailable, "whether this token was revoked cannot be found out now; try again").Because(err)
	}
	s.read = now
	return s.revoked, nil
}

// revokedGrants are the grants that were revoked within the life of an access token. A store has one.
type revokedGrants struct {
	Grants map[string]int64 `json:"g,omitempty"` // when each was revoked, in Unix seconds
	// Tenants are tenants with too many revocations to list. All their tokens that were
	// issued up to the given time, in Unix seconds, are revoked.
	Tenants map[string]int64 `json:"t,omitempty"`
}

// maxRevoked bounds the list, which is read often. An entry has about 50 bytes.
const maxRevoked = 4000

func revokedKey() storage.ValueKey {
	return storage.ValueKey{Scope: storage.ValueOfServer, Name: "oauth revoked"}
}

func parseRevoked(data []byte) (r revokedGrants, err error) {
	if len(data) > 0 {
		err = json.Unmarshal(data, &r)
	}
	return r, err
}

// has reports whether r revokes a token, by its grant, its tenant and its time of issue.
func (r revokedGrants) has(grant, tenant string, issued time.Time) bool {
	_, listed := r.Grants[grant]
	until, all := r.Tenants[tenant]
	return listed || all && issued.Unix() <= until
}

// add returns the list with one more grant, and without entries whose tokens have all
// expired.
func (r revokedGrants) add(grant, tenant string, now time.Time) revokedGrants {
	oldest := now.Add(-AccessLife - time.Minute).Unix()
	list, name := &r.Grants, grant
	for _, of := range []map[string]int64{r.Grants, r.Tenants} {
		maps.DeleteFunc(of, func(_ string, at int64) bool { return at <= oldest })
	}
	if len(r.Grants) >= maxRevoked {
		list, name = &r.Tenants, tenant
	}
	if *list == nil {
		*list = map[string]int64{}
	}
	(*list)[name] = now.Unix()
	return r
}

// Revoke makes all access tokens of a grant invalid, within 30 seconds everywhere.
//
// Errors: Unavailable: the tokens may still be valid, so call Revoke again.
func Revoke(ctx context.Context, store storage.Values, grant, tenant string) error {
	for {
		v, err := store.LoadValue(ctx, revokedKey())
		if err != nil {
			return err
		}
		list, err := parseRevoked(v.Data)
		if err != nil {
			return storage.Errorf(storage.Unavailable, "the list of revoked grants cannot be read").Because(err)
		}
		if _, listed := list.Grants[grant]; listed {
			return nil
		}
		now := time.Now()
		if v.Data, err = json.Marshal(list.add(grant, tenant, now)); err != nil {
			return err
		}
		v.Key, v.Expires = revokedKey(), now.Add(2*AccessLife)
		// After a conflict, try again: another program has revoked something since the list was loaded.
		if _, err := store.SaveValue(ctx, v); !errors.Is(err, storage.Conflict) {
			return err
		}
	}
}
