package console

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"html"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
	"time"
)

//go:embed page
var page embed.FS

// files serves the page. The paths of its files have a version, so that browsers cache all but
// the first page for ever. The first page names the provider for the sign-in.
type files struct {
	version string
	first   string
	signIn  func() (name, endpoint string)
}

// Placeholders in index.html, which newFiles and index replace.
const (
	versionMark  = "VERSION"
	providerMark = "PROVIDER"
	endpointMark = "ENDPOINT"
)

func newFiles(signIn func() (name, endpoint string)) *files {
	sum := sha256.New()
	err := fs.WalkDir(page, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := page.ReadFile(name)
		sum.Write([]byte(name))
		sum.Write(text)
		return err
	})
	if err != nil {
		panic("console: " + err.Error()) // cannot fail: the files are embedded in the program
	}
	first, err := page.ReadFile("page/index.html")
	if err != nil {
		panic("console: " + err.Error())
	}
	f := &files{version: hex.EncodeToString(sum.Sum(nil))[:12], signIn: signIn}
	f.first = strings.ReplaceAll(string(first), versionMark, f.version)
	return f
}

func (f *files) index(w http.ResponseWriter, r *http.Request) {
	name, endpoint := f.signIn()
	text := strings.NewReplacer(providerMark, html.EscapeString(name), endpointMark, html.EscapeString(endpoint)).Replace(f.first)
	sum := sha256.Sum256([]byte(text))
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	h.Set("ETag", `W/"`+hex.EncodeToString(sum[:6])+`"`)
	http.ServeContent(w, r, "", time.Time{}, strings.NewReader(text))
}

func (f *files) file(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	text, err := page.ReadFile("page/" + name)
	if r.PathValue("version") != f.version || err != nil {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	kind := mime.TypeByExtension(path.Ext(name))
	if path.Ext(name) == ".js" {
		kind = "text/javascript; charset=utf-8"
	}
	h.Set("Content-Type", kind)
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	h.Set("ETag", `W/"`+f.version+`"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(text))
}
