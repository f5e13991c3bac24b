package ociimage_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/ociimage"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
)

// registry has an image for two processors under the tag 1, and for one under the tag one.
type registry struct {
	*httptest.Server
	files  map[string]string // by path below /v2/acme/server/
	wants  string            // the header Authorization, "" for none
	tokens bool              // gives everybody a token, which it wants
	status int               // of every answer, 0 for the right one
	asked  []string
}

func digest(text string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(text))) }

func start(t *testing.T) *registry {
	t.Helper()
	r := &registry{files: map[string]string{}}
	encode := func(v any) string {
		text, err := json.Marshal(v)
		commontest.OK(t, err)
		return string(text)
	}
	type object = map[string]any
	var index []any
	for _, arch := range []string{"amd64", "arm64"} {
		config := encode(object{"os": "linux", "architecture": arch, "config": object{"Entrypoint": []string{"/server-" + arch}, "Cmd": []string{"stdio"}, "User": "65532"}})
		manifest := encode(object{"config": object{"digest": digest(config)}, "layers": []any{}})
		r.files["blobs/"+digest(config)], r.files["manifests/"+digest(manifest)] = config, manifest
		r.files["manifests/one"] = manifest
		index = append(index, object{"digest": digest(manifest), "platform": object{"os": "linux", "architecture": arch}})
	}
	all := encode(object{"manifests": append([]any{object{"digest": digest("x"), "platform": object{"os": "unknown", "architecture": "unknown"}}}, index...)})
	r.files["manifests/1"], r.files["manifests/"+digest(all)] = all, all
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

func (r *registry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	r.asked = append(r.asked, q.URL.Path)
	switch file, there := r.files[strings.TrimPrefix(q.URL.Path, "/v2/acme/server/")]; {
	case r.status != 0:
		w.WriteHeader(r.status)
	case q.URL.Path == "/token" && r.tokens && q.URL.Query().Get("scope") == "repository:acme/server:pull" && q.URL.Query().Get("service") == "here":
		_, _ = fmt.Fprint(w, `{"token":"T"}`)
	case q.URL.Path == "/token":
		w.WriteHeader(http.StatusForbidden)
	case r.wants != "" && q.Header.Get("Authorization") != r.wants:
		w.Header().Set("WWW-Authenticate", `Bearer realm="`+r.URL+`/token",service="here",scope="x"`)
		w.WriteHeader(http.StatusUnauthorized)
	case !there:
		w.WriteHeader(http.StatusNotFound)
	default:
		_, _ = fmt.Fprint(w, file)
	}
}

func (r *registry) image(rest string) string {
	return strings.TrimPrefix(r.URL, "http://") + "/acme/server" + rest
}

func TestAnImageIsNamedByItsDigestAndSaysWhatItStarts(t *testing.T) {
	r := start(t)
	pinned := r.image("@" + digest(r.files["manifests/1"]))
	for _, arch := range []string{"amd64", "arm64"} {
		want := frame.Image{Entrypoint: []string{"/server-" + arch}, Cmd: []string{"stdio"}}
		for _, name := range []string{":1", ":1@" + digest(r.files["manifests/1"]), "@" + digest(r.files["manifests/1"])} {
			got, command, err := ociimage.Registries{Arch: arch}.Inspect(t.Context(), r.image(name))
			if d := cmp.Diff(want, command); d != "" || got != pinned || err != nil {
				t.Errorf("%s, %s: %s, %v %s", arch, name, got, err, d)
			}
		}
	}
}

func TestARegistryGetsALoginOrGivesAToken(t *testing.T) {
	login := func(_ context.Context, host string) (string, error) {
		if strings.HasPrefix(host, "127.") {
			return "Basic QVdTOng=", nil
		}
		return "", nil
	}
	for name, test := range map[string]struct {
		wants  string
		tokens bool
		login  func(context.Context, string) (string, error)
		want   error
	}{
		"everybody": {"", false, nil, nil}, "a token": {"Bearer T", true, nil, nil}, "a login": {"Basic QVdTOng=", false, login, nil},
		"no token": {"Bearer T", false, nil, fleet.ErrInvalid}, "no login": {"Basic QVdTOng=", false, nil, fleet.ErrInvalid},
		"a login that fails": {"", false, func(context.Context, string) (string, error) { return "", errors.New("no") }, fleet.ErrUnavailable},
	} {
		r := start(t)
		r.wants, r.tokens = test.wants, test.tokens
		got, _, err := ociimage.Registries{Arch: "arm64", Login: test.login}.Inspect(t.Context(), r.image(":1"))
		if !errors.Is(err, test.want) || (got == "") != (test.want != nil) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestWhatNoStartCanMendIsToldApart(t *testing.T) {
	for name, test := range map[string]struct {
		image  string
		change func(*registry)
		want   error
	}{
		"no such tag":        {":2", nil, fleet.ErrInvalid},
		"a digest too short": {"@sha256:00", nil, fleet.ErrInvalid},
		"other processor":    {":one", nil, fleet.ErrInvalid},
		"busy":               {":1", func(r *registry) { r.status = http.StatusTooManyRequests }, fleet.ErrUnavailable},
		"other bytes": {"@" + digest("asked for"), func(r *registry) {
			r.files["manifests/"+digest("asked for")] = "given"
		}, fleet.ErrUnavailable},
	} {
		r := start(t)
		if test.change != nil {
			test.change(r)
		}
		if got, _, err := (ociimage.Registries{Arch: "amd64"}).Inspect(t.Context(), r.image(test.image)); !errors.Is(err, test.want) || got != "" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// Names are Docker's: those without a host are of Docker Hub.
func TestNamesAreThoseOfDocker(t *testing.T) {
	for image, want := range map[string]string{
		"node":                 "https://registry-1.docker.io/v2/library/node/manifests/latest",
		"mcp/time:1":           "https://registry-1.docker.io/v2/mcp/time/manifests/1",
		"docker.io/node":       "https://registry-1.docker.io/v2/library/node/manifests/latest",
		"ghcr.io/github/x":     "https://ghcr.io/v2/github/x/manifests/latest",
		"localhost:5000/a/b:c": "http://localhost:5000/v2/a/b/manifests/c",
		"../x":                 "",
	} {
		var asked string
		client := &http.Client{Transport: roundTrip(func(q *http.Request) (*http.Response, error) {
			asked = q.URL.String()
			return nil, errors.New("nobody is there")
		})}
		_, _, err := ociimage.Registries{Arch: "arm64", Client: client}.Inspect(t.Context(), image)
		if asked != want || want == "" && !errors.Is(err, fleet.ErrInvalid) {
			t.Errorf("%s: asked %s, %v; want %s", image, asked, err, want)
		}
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
