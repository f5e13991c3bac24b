package console

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"time"
)

//go:embed page
var page embed.FS

// files serves the page. Its files have a version in their paths, so browsers keep them for
// good; the first page alone is asked for again.
type files struct {
	version string
	first   []byte
	tag     string // of the first page
}

// versionMark stands for the version in the first page.
const versionMark = "VERSION"

func newFiles() *files {
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
		panic("console: " + err.Error()) // the files are in this program
	}
	first, err := page.ReadFile("page/index.html")
	if err != nil {
		panic("console: " + err.Error())
	}
	f := &files{version: hex.EncodeToString(sum.Sum(nil))[:12]}
	f.first, f.tag = bytes.ReplaceAll(first, []byte(versionMark), []byte(f.version)), `W/"`+f.version+`"`
	return f
}

func (f *files) index(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	h.Set("ETag", f.tag)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.first))
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
	h.Set("ETag", f.tag)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(text))
}
