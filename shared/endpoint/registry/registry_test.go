package registry_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/registry"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

type published struct {
	t *testing.T
	registry.Registry
	base string
	may  []sessions.Caller
}

// publish returns a registry of servers. A server whose serverInfo is "" has never started.
func publish(t *testing.T, infos map[string]string) *published {
	t.Helper()
	store := storagetest.NewMemory()
	p := &published{t: t, Registry: registry.Registry{Records: store}, base: "http://127.0.0.1:8787"}
	for name, info := range infos {
		p.may = append(p.may, sessions.Caller{Identity: storage.Identity{Tenant: "acme"}, Server: sessions.Server{Name: name, Digest: "d-" + name}})
		if info == "" {
			continue
		}
		now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		err := store.SaveHandshake(t.Context(), storage.Handshake{
			Digest: storage.RecordFor("acme", "d-"+name), Version: wire.V20251125, Taken: now, Expires: time.Now().Add(time.Hour),
			Result: json.RawMessage(`{"serverInfo":` + info + `}`),
		})
		commontest.OK(t, err)
	}
	return p
}

type entry struct {
	Server struct {
		Name, Title, Description, Version, WebsiteURL string
		Remotes                                       []struct{ Type, URL string }
	}
	Meta map[string]struct {
		Status    string
		UpdatedAt string
		IsLatest  bool
	} `json:"_meta"`
}

type page struct {
	Servers  []entry
	Metadata struct {
		NextCursor string
		Count      int
	}
}

func (p page) names() (names []string) {
	for _, e := range p.Servers {
		names = append(names, e.Server.Name)
	}
	return names
}

// get decodes the answer to a path below /registry/v0.1/.
func (p *published) get(path string, into any) error {
	p.t.Helper()
	_, answer, err := p.Answer(httptest.NewRequestWithContext(p.t.Context(), "GET", registry.Prefix+path, nil), p.base, p.may)
	if err != nil {
		return err
	}
	text, err := json.Marshal(answer)
	commontest.OK(p.t, err)
	commontest.OK(p.t, json.Unmarshal(text, into))
	return nil
}

func TestServerJSONSaysWhatTheServerSaid(t *testing.T) {
	p := publish(t, map[string]string{
		"weather": `{"name":"w","title":"Weather","version":"1.2.3","description":"Forecasts ` + strings.Repeat("x", 100) + `","websiteUrl":"https://weather.example"}`,
		"asleep":  "", "odd": `{"name":"o","version":">=1.0","websiteUrl":"javascript:alert(1)"}`,
	})
	p.PublicURL = "https://mcp.example.com/"
	var got entry
	commontest.OK(t, p.get("servers/com.example.mcp%2Fweather/versions/latest", &got))
	if s := got.Server; s.Name != "com.example.mcp/weather" || s.Title != "Weather" || s.Version != "1.2.3" || s.WebsiteURL != "https://weather.example" || len([]rune(s.Description)) != 100 || !strings.HasPrefix(s.Description, "Forecasts x") {
		t.Errorf("got %+v", s)
	}
	if r := got.Server.Remotes; len(r) != 1 || r[0].Type != "streamable-http" || r[0].URL != "https://mcp.example.com/weather/mcp" {
		t.Errorf("its remotes are %+v", r)
	}
	if m := got.Meta["io.modelcontextprotocol.registry/official"]; m.Status != "active" || !m.IsLatest || m.UpdatedAt != "2026-01-02T03:04:05Z" {
		t.Errorf("its meta is %+v", m)
	}
	for name, want := range map[string]string{"asleep": "asleep, hosted by Dormouse", "odd": "odd, hosted by Dormouse"} {
		var got entry
		if err := p.get("servers/com.example.mcp%2F"+name+"/versions/latest", &got); err != nil || got.Server.Version != "0.0.0" || got.Server.Description != want || got.Server.WebsiteURL != "" {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
}

func TestServersAreFoundByNameAndVersion(t *testing.T) {
	p := publish(t, map[string]string{"weather": `{"name":"w","version":"1.2.3+b"}`, "versions": `{"name":"v","version":"1.0.0"}`})
	for path, want := range map[string]string{
		"servers/local%2Fweather/versions/latest":    "local/weather",
		"servers/local%252Fweather/versions/latest":  "local/weather", // by a gateway that leaves escapes as they are
		"servers/local%2Fweather/versions/1.2.3%2Bb": "local/weather",
		"servers/local%2Fweather/versions/2.0.0":     "not_found",
		"servers/local%2Fweather":                    "not_found",
		"publish":                                    "not_found",
		"servers/local%2Fnone/versions/latest":       "not_found",
	} {
		var got entry
		err := p.get(path, &got)
		commontest.EqualIn(t, path, want, got.Server.Name+string(storage.CodeOf(err)))
	}
	var all page
	if err := p.get("servers/local%2Fweather/versions", &all); err != nil || !slices.Equal(all.names(), []string{"local/weather"}) || all.Metadata.Count != 1 {
		t.Errorf("its versions are %+v, %v", all, err)
	}
}

func TestListsHavePages(t *testing.T) {
	infos := map[string]string{}
	for i := range 45 {
		infos[fmt.Sprintf("s%02d", i)] = ""
	}
	p := publish(t, infos)
	for query, sizes := range map[string][]int{"": {30, 15}, "limit=20": {20, 20, 5}, "limit=1000": {45}} {
		names, cursor := map[string]bool{}, ""
		for _, size := range sizes {
			var one page
			commontest.OK(t, p.get("servers?"+query+"&cursor="+url.QueryEscape(cursor), &one))
			commontest.EqualIn(t, query+", a page", size, one.Metadata.Count)
			for _, name := range one.names() {
				names[name] = true
			}
			cursor = one.Metadata.NextCursor
		}
		commontest.EqualIn(t, query+", servers and no next page", "45 ", fmt.Sprint(len(names), " ", cursor))
	}
	for _, query := range []string{"limit=0", "limit=x", "cursor=%25", "updated_since=yesterday"} {
		commontest.EqualIn(t, query, storage.Invalid, storage.CodeOf(p.get("servers?"+query, &page{})))
	}
}

func TestListsAreFiltered(t *testing.T) {
	p := publish(t, map[string]string{"weather": `{"name":"w","version":"1.0.0"}`, "files": `{"name":"f","version":"2.0.0"}`, "new": ""})
	for query, want := range map[string][]string{
		"search=WEATH": {"local/weather"}, "version=2.0.0": {"local/files"}, "version=latest": {"local/files", "local/new", "local/weather"},
		"updated_since=2026-02-01T00:00:00Z": {"local/new"}, // nobody knows when
	} {
		var got page
		commontest.OKIn(t, query, p.get("servers?"+query, &got))
		commontest.SameIn(t, query, want, got.names())
	}
}

// A store that fails does not make a server disappear.
func TestFailureOfTheStoreIsReported(t *testing.T) {
	p := publish(t, map[string]string{"one": ""})
	p.Records = broken{p.Records}
	commontest.Equal(t, storage.Unavailable, storage.CodeOf(p.get("servers", &page{})))
}

type broken struct{ storage.Handshakes }

func (broken) Handshake(context.Context, string, string) (storage.Handshake, error) {
	return storage.Handshake{}, storage.Unavailable
}

// The catalog and the cards are those of the drafts. A card has what the server has said, and no list.
func TestACardSaysHowToConnect(t *testing.T) {
	const remote = `[{"type":"streamable-http","url":"https://mcp.example.com/weather/mcp","headers":[{"name":"Authorization","description":"An API key of mcp.example.com","value":"Bearer {key_mcp_example_com}","isRequired":true,"isSecret":true,` +
		`"variables":{"key_mcp_example_com":{"description":"API key of mcp.example.com, from its operator","isRequired":true,"isSecret":true}}}]`
	p := publish(t, map[string]string{"weather": `{"name":"w","title":"Weather","version":"1.2.3","description":"Forecasts"}`, "asleep": ""})
	p.PublicURL, p.Keys = "https://mcp.example.com/", true
	var got struct {
		Server struct{ Remotes json.RawMessage }
	} // of the registry, with the same headers
	commontest.OK(t, p.get("servers/weather/versions/latest", &got))
	commontest.EqualIn(t, "the registry's remotes", remote+"}]", string(got.Server.Remotes))
	slices.SortFunc(p.may, func(a, b sessions.Caller) int { return strings.Compare(a.Server.Name, b.Server.Name) })
	for path, want := range map[string][2]string{
		registry.CatalogPath: {`{"specVersion":"1.0","entries":[` +
			`{"identifier":"urn:air:mcp.example.com:mcp:asleep","type":"application/mcp-server-card+json","url":"https://mcp.example.com/asleep/mcp/server-card"},` +
			`{"identifier":"urn:air:mcp.example.com:mcp:weather","type":"application/mcp-server-card+json","url":"https://mcp.example.com/weather/mcp/server-card"}]}`, "application/ai-catalog+json"},
		"/weather/mcp/server-card": {`{"$schema":"https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json","name":"com.example.mcp/weather","title":"Weather","description":"Forecasts","version":"1.2.3",` +
			`"remotes":` + remote + `,"supportedProtocolVersions":["2026-07-28","2025-11-25","2025-06-18","2025-03-26"]}]}`, "application/mcp-server-card+json"},
	} {
		media, answer, err := p.Cards(httptest.NewRequestWithContext(t.Context(), "GET", path, nil), p.base, p.may)
		commontest.OK(t, err)
		raw, err := json.Marshal(answer)
		commontest.OK(t, err)
		commontest.SameIn(t, path, want[0], string(raw))
		commontest.EqualIn(t, path, want[1], media)
	}
	if _, _, err := p.Cards(httptest.NewRequestWithContext(t.Context(), "GET", "/none/mcp/server-card", nil), p.base, p.may); storage.CodeOf(err) != storage.NotFound {
		t.Error(err)
	}
	for path, want := range map[string]bool{registry.CatalogPath: true, "/a.b/mcp/server-card": true, "/mcp/server-card": false, "/a/b/mcp/server-card": false, "/a/mcp": false, "a/mcp/server-card": false} {
		commontest.EqualIn(t, path, want, registry.IsCard(path))
	}
}
