package authserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/address"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Limits of a client ID metadata document.
const (
	maxDocument  = 5 << 10
	fetchWithin  = 5 * time.Second
	documentMin  = 5 * time.Minute // a document is kept for at least this time, whatever its headers say
	documentMax  = 24 * time.Hour
	missingFor   = time.Minute
	documentName = "oauth client "
)

// Limits of what is fetched and remembered for strangers, who may name any URL.
const (
	maxRemembered   = 1000 // documents, and reasons why a URL has none
	maxFetches      = 16   // fetches at a time
	maxFetchesAHost = 2
)

// documents reads client ID metadata documents: JSON about a client at the URL that is its id. It
// remembers each document for a while, and stores those of clients for which users have signed in.
type documents struct {
	store storage.Values
	web   *http.Client
	hosts []string

	mu      sync.Mutex
	known   map[string]kept // what is remembered of documents, by client id
	running map[string]int  // number of running fetches, by host
	fetches int             // the sum of running
	ended   *sync.Cond      // of mu: a fetch has ended, or who waits for one has gone
}

func newDocuments(store storage.Values, web *http.Client, hosts []string) *documents {
	d := &documents{store: store, web: web, hosts: hosts, known: map[string]kept{}, running: map[string]int{}}
	d.ended = sync.NewCond(&d.mu)
	return d
}

// kept is what is known about a document.
type kept struct {
	Document *document `json:"d,omitempty"` // nil: the URL has no valid document
	Reason   string    `json:"r,omitempty"` // why Document is nil

	until  time.Time
	rev    int64 // revision of the document's row in the store
	stored bool
}

func (d *documents) client(ctx context.Context, id string) (client, error) {
	u, err := checkDocumentURL(id)
	if err != nil {
		return client{}, bad("invalid_client", err.Error())
	}
	if d.hosts != nil && !slices.Contains(d.hosts, u.Hostname()) {
		return client{}, bad("invalid_client", "the operator of this server does not allow clients of this host; ask the operator to add it to client_hosts")
	}
	k, err := d.read(ctx, id, strings.ToLower(u.Hostname()))
	if err != nil {
		return client{}, err
	}
	if k.Document == nil {
		return client{}, bad("invalid_client", k.Reason)
	}
	doc := *k.Document
	fingerprint := fmt.Sprintf("%q %q", doc.Name, doc.Redirects)
	return client{
		id: id, name: shorten(doc.Name), site: u.Hostname(), mark: fingerprint,
		has: func(uri string) bool { return lists(doc.Redirects, uri) },
	}, nil
}

// checkDocumentURL refuses ids that must not be fetched.
func checkDocumentURL(id string) (*url.URL, error) {
	u, err := url.Parse(id)
	switch {
	case err != nil || u.Scheme != "https" || !isHost(u) || u.User != nil || strings.Contains(id, "#"):
		return nil, errors.New("the client_id is not the URL of a metadata document; use an https URL without a user or a fragment")
	case u.Port() != "" && u.Port() != "443":
		return nil, errors.New("the client_id has a port; leave the port out")
	case u.Path == "" || u.Path == "/" || slices.Contains(strings.Split(u.Path, "/"), "..") || slices.Contains(strings.Split(u.Path, "/"), "."):
		return nil, errors.New("the client_id has no path, or a path with dots; use a URL such as https://HOST/client.json")
	}
	return u, nil
}

// read returns a document that is remembered or in the store. For any other document it waits for
// its turn and fetches it.
func (d *documents) read(ctx context.Context, id, host string) (kept, error) {
	if k, ok := d.remembered(id); ok {
		return k, nil
	}
	v, err := d.store.LoadValue(ctx, documentKey(id))
	if err != nil {
		return kept{}, err
	}
	k := kept{until: v.Expires, stored: true}
	if v.Rev != 0 && json.Unmarshal(v.Data, &k) == nil {
		d.remember(id, k)
		return k, nil
	}
	ctx, cancel := context.WithTimeout(ctx, fetchWithin)
	defer cancel()
	if err := d.begin(ctx, host); err != nil {
		return kept{}, err
	}
	defer d.end(host)
	if k, ok := d.remembered(id); ok {
		return k, nil // another request has fetched the document meanwhile
	}
	doc, life, err := d.fetch(ctx, id)
	k = kept{Document: &doc, rev: v.Rev}
	if err != nil {
		k, life = kept{Reason: "the client's document cannot be used: " + err.Error()}, missingFor
	}
	k.until = time.Now().Add(life)
	d.remember(id, k)
	return k, nil
}

func documentKey(id string) storage.ValueKey {
	return storage.ValueKey{Scope: storage.ValueOfServer, Name: documentName + idText(sum(id))}
}

func (d *documents) remembered(id string) (kept, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	k, ok := d.known[id]
	return k, ok && time.Now().Before(k.until)
}

func (d *documents) remember(id string, k kept) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.known) >= maxRemembered {
		clear(d.known) // each can be fetched again
	}
	d.known[id] = k
}

// keep stores a document for which a user has signed in, so that no instance has to fetch
// it soon.
func (d *documents) keep(ctx context.Context, id string) error {
	k, ok := d.remembered(id)
	if !ok || k.stored || k.Document == nil {
		return nil
	}
	data, err := json.Marshal(k)
	if err != nil {
		return err
	}
	_, err = d.store.SaveValue(ctx, storage.Value{Key: documentKey(id), Rev: k.rev, Data: data, Expires: k.until})
	if err != nil && !errors.Is(err, storage.Conflict) { // a Conflict means that another instance has stored the document
		return err
	}
	k.stored = true
	d.remember(id, k)
	return nil
}

// begin waits until a document of a host may be fetched. After each begin, the caller must call
// end.
func (d *documents) begin(ctx context.Context, host string) error {
	defer context.AfterFunc(ctx, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.ended.Broadcast()
	})()
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.fetches >= maxFetches || d.running[host] >= maxFetchesAHost {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		d.ended.Wait()
	}
	d.fetches++
	d.running[host]++
	return nil
}

func (d *documents) end(host string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fetches--
	if d.running[host]--; d.running[host] == 0 {
		delete(d.running, host)
	}
	d.ended.Broadcast()
}

// fetch gets a document. Users see the errors, so no error tells what the host has answered.
func (d *documents) fetch(ctx context.Context, id string) (document, time.Duration, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, id, nil)
	if err != nil {
		return document{}, 0, errors.New("its URL cannot be read")
	}
	r.Header.Set("Accept", "application/json")
	res, err := d.web.Do(r)
	if err != nil {
		return document{}, 0, errors.New("it cannot be fetched")
	}
	defer func() { _ = res.Body.Close() }() // nothing was written through it
	body, err := io.ReadAll(io.LimitReader(res.Body, maxDocument+1))
	switch {
	case err != nil || res.StatusCode != http.StatusOK:
		return document{}, 0, errors.New("its host did not answer with status 200")
	case len(body) > maxDocument:
		return document{}, 0, errors.New("it is too long")
	}
	doc, err := parseDocument(id, body)
	return doc, freshness(res.Header), err
}

func parseDocument(id string, body []byte) (document, error) {
	var d document
	var all map[string]json.RawMessage
	if json.Unmarshal(body, &d) != nil || json.Unmarshal(body, &all) != nil {
		return d, errors.New("it is not JSON with the metadata of a client")
	}
	_, secret := all["client_secret"]
	_, expiring := all["client_secret_expires_at"]
	switch {
	case d.ID != id:
		return d, errors.New("its client_id is not the URL of the document")
	case secret || expiring || strings.HasPrefix(d.Method, "client_secret_"):
		return d, errors.New("it contains a client secret, which everybody could read")
	case len(d.Redirects) == 0 || len(d.Redirects) > 2*maxURIs:
		return d, errors.New("it has no redirect URIs, or too many")
	}
	good, wrong := usable(d.Redirects, false)
	if len(good) == 0 {
		return d, errors.New("none of its redirect URIs can be used: " + wrong.Error())
	}
	return document{ID: d.ID, Name: d.Name, Redirects: good}, nil
}

// freshness returns how long a document is kept, by its headers.
func freshness(h http.Header) time.Duration {
	for part := range strings.SplitSeq(h.Get("Cache-Control"), ",") {
		value, ok := strings.CutPrefix(strings.TrimSpace(strings.ToLower(part)), "max-age=")
		if seconds, err := strconv.ParseInt(value, 10, 32); ok && err == nil {
			return min(max(time.Duration(seconds)*time.Second, documentMin), documentMax)
		}
	}
	return documentMin
}

// newPublicClient returns a client that connects to public addresses only, at port 443,
// and follows no redirect. It checks the address that is really dialled, so a name that
// resolves to another address the second time gains nothing.
func newPublicClient() *http.Client {
	dialer := &net.Dialer{Timeout: fetchWithin, Control: func(_, to string, _ syscall.RawConn) error { return checkAddress(to) }}
	return &http.Client{
		Transport: &http.Transport{
			DialContext: dialer.DialContext, TLSHandshakeTimeout: fetchWithin, ResponseHeaderTimeout: fetchWithin,
			MaxResponseHeaderBytes: 16 << 10, DisableKeepAlives: true, ForceAttemptHTTP2: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       fetchWithin,
	}
}

// checkAddress refuses addresses that are not public, and ports other than that of https.
func checkAddress(to string) error {
	at, err := netip.ParseAddrPort(to)
	if err != nil || at.Port() != 443 || !address.Public(at.Addr()) {
		return fmt.Errorf("the address %s is not public", to)
	}
	return nil
}
