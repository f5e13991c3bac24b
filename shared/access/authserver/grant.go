package authserver

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/resourceserver"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"golang.org/x/oauth2"
)

const (
	grantIdle = 30 * 24 * time.Hour // how long a grant lasts without being used
	grantLife = 90 * 24 * time.Hour // how long a grant lasts at most
	grace     = time.Hour           // how long a late refresh token does not end the grant; see errLate
)

const refreshPrefix = "dr_"

// A refresh token is dr_<handle>_<secret>. The handle has 128 random bits and is stored nowhere;
// its hash is the grant's ID. A sender that knows the handle therefore has had a token of the
// grant.
func refreshToken(handle, secret string) string { return refreshPrefix + handle + "_" + secret }

// handleOf returns the handle of a refresh token. For a text of any other form ok is false, which
// saves a read of the store.
func handleOf(token string) (handle string, ok bool) {
	rest, ok := strings.CutPrefix(token, refreshPrefix)
	if len(token) > 100 {
		return "", false
	}
	handle, secret, cut := strings.Cut(rest, "_")
	return handle, ok && cut && len(handle) == handleChars && secret != ""
}

const handleChars = 26

func grantID(handle string) string { return idText(sum("grant " + handle))[:handleChars] }

func idText(raw []byte) string {
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(raw))
}

// successor returns the refresh token that follows another one. The salt is stored and the token
// is not, so neither a copy of the store nor an old token is enough to compute the successor.
func successor(salt []byte, handle, token string) string {
	mac := hmac.New(sha256.New, salt)
	mac.Write([]byte(token))
	return refreshToken(handle, base64.RawURLEncoding.EncodeToString(mac.Sum(nil)))
}

// tokens is the answer of /token (RFC 6749 §5.1).
type tokens struct {
	Access  string `json:"access_token"`
	Type    string `json:"token_type"`
	Seconds int64  `json:"expires_in"`
	Refresh string `json:"refresh_token,omitempty"`
	Scope   string `json:"scope"`
}

// grants begins grants and rotates their tokens.
type grants struct {
	seals
	rows Store
}

// issue returns the tokens of a grant: a new access token, and the given refresh token. The
// argument rules becomes the ToolRules of the access token.
func (b *grants) issue(g storage.Grant, rules, scopes []string, refresh string) tokens {
	now := time.Now()
	t := resourceserver.Token{
		ToolRules: rules,
		Grant:     g.ID, Tenant: g.Tenant, Principal: g.Principal, Server: g.Server, Scopes: scopes, Expires: now.Add(resourceserver.AccessLife).Unix(),
		Props: withClient(g.Props, g.Client, scopes),
	}
	if resourceserver.IsGroup(g.Server) {
		t.Claims = g.Claims
	}
	return tokens{resourceserver.SealToken(b.seals[forAccess], t), "Bearer", int64(resourceserver.AccessLife.Seconds()), refresh, strings.Join(scopes, " ")}
}

// withClient adds the scopes and the client to props, the claims that native servers (in Go, part
// of this program) get.
func withClient(props []byte, client string, scopes []string) []byte {
	claims := map[string]json.RawMessage{}
	_ = json.Unmarshal(props, &claims) // cannot fail: props are nil, or JSON that identify has written
	for name, value := range map[string]string{"scope": strings.Join(scopes, " "), "client_id": client} {
		text, err := json.Marshal(value)
		if err != nil {
			panic("authserver: " + err.Error()) // strings always marshal
		}
		claims[name] = text
	}
	all, err := json.Marshal(claims)
	if err != nil {
		panic("authserver: " + err.Error()) // each member is valid JSON
	}
	return all
}

// begin stores a new grant, and returns it and its first refresh token. The grant expires with its
// code, unless the caller calls keep after it has sent the tokens. If the grant exists already,
// begin returns Conflict.
func (b *grants) begin(ctx context.Context, g storage.Grant, handle string) (refresh string, begun storage.Grant, err error) {
	refresh, now := refreshToken(handle, oauth2.GenerateVerifier()), time.Now()
	g.ID, g.Current, g.Salt = grantID(handle), sum(refresh), make([]byte, 32)
	_, _ = rand.Read(g.Salt) // Read never fails
	g.Created, g.Rotated, g.Expires = now, now, now.Add(codeWithin)
	err = b.rows.Grants().Create(ctx, g)
	g.Rev = 1
	return refresh, g, err
}

const keepTries = 3

// keep extends a new grant to grantIdle after its tokens were sent. If keep fails, the client has to
// sign in again when its access token has expired.
func (b *grants) keep(ctx context.Context, g storage.Grant) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepWithin)
	defer cancel()
	g.Expires = g.Created.Add(grantIdle)
	for range keepTries {
		// A Conflict means that an earlier try has succeeded, that the client has refreshed its
		// tokens, or that the grant was revoked.
		if err := b.rows.Grants().Save(ctx, g); !errors.Is(err, storage.Unavailable) {
			return
		}
	}
}

const keepWithin = 5 * time.Second

var (
	// errLate says that the successor of a refresh token was used a short time ago.
	errLate    = errors.New("the successor of a refresh token was used before it")
	errReused  = errors.New("a refresh token was used again")
	errRevoked = errors.New("the grant was revoked")
)

// rotate returns the refresh token that follows token. If token is the current one, the next one
// becomes current. If token is the one before, rotate returns the current one again: clients lose
// answers, and several programs share one token.
//
// Errors: those of the function allow, which checks the grant; errLate for the token two before the
// current one, for an hour (grace); errReused for any other token; NotFound; Unavailable.
func (b *grants) rotate(ctx context.Context, handle, token string, allow func(storage.Grant) error) (storage.Grant, string, error) {
	for {
		g, err := b.rows.Grants().Get(ctx, grantID(handle))
		if err != nil {
			return g, "", err
		}
		if err := allow(g); err != nil {
			return g, "", err
		}
		now, hash := time.Now(), sum(token)
		next := successor(g.Salt, handle, token)
		switch {
		case subtle.ConstantTimeCompare(hash, g.Current) == 1:
		case subtle.ConstantTimeCompare(hash, g.Previous) == 1:
			return g, next, nil
		case subtle.ConstantTimeCompare(hash, g.Before) == 1 && now.Sub(g.Rotated) < grace:
			return g, "", errLate
		default:
			return g, "", errReused
		}
		g.Before, g.Previous, g.Current, g.Rotated = g.Previous, hash, sum(next), now
		if g.Expires = now.Add(grantIdle); g.Expires.After(g.Created.Add(grantLife)) {
			g.Expires = g.Created.Add(grantLife)
		}
		// A Conflict means that the token is the previous one by now, or that the grant was
		// revoked.
		if err := b.rows.Grants().Save(ctx, g); !errors.Is(err, storage.Conflict) {
			return g, next, err
		}
	}
}

// Revoke ends a grant by its ID: at once for refresh tokens, and within 30 seconds for access
// tokens.
//
// Errors: NotFound; Unavailable: its tokens may still be good, so call Revoke again.
func Revoke(ctx context.Context, store Store, id string) (storage.Grant, error) {
	for {
		g, err := store.Grants().Get(ctx, id)
		if err != nil {
			return g, err
		}
		if g.Revoked.IsZero() {
			g.Revoked = time.Now()
			if err := store.Grants().Save(ctx, g); errors.Is(err, storage.Conflict) {
				continue
			} else if err != nil {
				return g, err
			}
		}
		return g, resourceserver.Revoke(ctx, store, g.ID, g.Tenant)
	}
}
