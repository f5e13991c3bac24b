package transport_test

import (
	"database/sql"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/sqlitestore"
)

// newWorldAt returns a world whose store is a SQLite file.
func newWorldAt(t *testing.T, path string) *world {
	return newWorldOn(t, func() storage.Store {
		store, err := sqlitestore.Open(path)
		commontest.OK(t, err)
		return napping{store}
	})
}

// behind runs SQL on a file without the store.
func behind(t *testing.T, path string, use func(db *sql.DB) error) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err == nil {
		err = use(db)
	}
	if err == nil {
		err = db.Close()
	}
	commontest.OK(t, err)
}

// C-72: the file of an older program still works: its sessions, their events and the ids
// that clients have.
func TestFileOfAnOlderVersionGoesOn(t *testing.T) {
	const (
		id     = "ach2gnei3t0ndch52d7gj3rnqisto3ki"
		half   = "1/03e6ljtc01o03cijj936ia7s1o"
		common = "1.thsh1j4ont0"
	)
	old, err := os.ReadFile(filepath.Join("testdata", "sqlite-7.sql"))
	commontest.OK(t, err)
	path := filepath.Join(t.TempDir(), "sessions.db")
	behind(t, path, func(db *sql.DB) error { _, err := db.ExecContext(t.Context(), string(old)); return err })
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Hour)
		w := newWorldAt(t, path)
		v := w.at("/pushy/mcp", id)
		commontest.SameIn(t, "the call", []string{resultOf(`{}`)}, v.get(half).datas(t))
		v.push("more")
		commontest.SameIn(t, "the standalone stream", []string{said("more")}, v.get(common).datas(t))
		if a := v.call("x"); a.status != http.StatusOK {
			t.Errorf("a new call: got %d %s", a.status, a.body)
		}
		d := w.backend.delivered[len(w.backend.delivered)-1]
		if !strings.Contains(string(d.Client.Init), `"clientInfo"`) || !slices.Equal(d.Client.Subscribed, []string{"file:///a"}) || !d.Again {
			t.Errorf("delivered for %+v, again %v", d.Client, d.Again)
		}
		box, err := w.store.Box(t.Context(), storage.BoxFor("tenant", "pushy"))
		if err != nil || box.State != storage.Awake || box.Gen != 3 || box.Conn != "c" {
			t.Errorf("the box is %+v, %v", box, err)
		}
	})
}

// C-72: the store reads a record that lacks newer fields. It also reads the record of a
// newer program, with fields that it does not know.
func TestRecordOfAnotherVersionIsRead(t *testing.T) {
	changes := map[string]func(record map[string]any){
		"older": func(record map[string]any) {
			for _, name := range []string{"Shadows", "Conns", "Pushed", "Pusher", "Delivered", "Primary", "Served", "Level", "Subscribed", "Quit"} {
				delete(record, name)
			}
		},
		"newer": func(record map[string]any) { record["Mood"] = map[string]any{"sleepy": true} },
	}
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "sessions.db")
			synctest.Test(t, func(t *testing.T) {
				w := newWorldAt(t, path)
				v := w.visit("pushy")
				rewrite(t, path, v.session, change)
				v.push("news")
				commontest.Same(t, []string{said("news")}, v.get("").datas(t))
				if a := v.call("x"); a.status != http.StatusOK {
					t.Errorf("got %d %s", a.status, a.body)
				}
				d := w.backend.delivered[len(w.backend.delivered)-1]
				if len(d.Client.Init) == 0 || d.Client.Version != "2025-11-25" {
					t.Errorf("delivered with %s, version %q", d.Client.Init, d.Client.Version)
				}
			})
		})
	}
}

func rewrite(t *testing.T, path, id string, change func(record map[string]any)) {
	t.Helper()
	behind(t, path, func(db *sql.DB) error {
		var text []byte
		if err := db.QueryRowContext(t.Context(), "SELECT record FROM sessions WHERE id = ?", id).Scan(&text); err != nil {
			return err
		}
		record := map[string]any{}
		if err := json.Unmarshal(text, &record); err != nil {
			return err
		}
		change(record)
		changed, err := json.Marshal(record)
		if err == nil {
			_, err = db.ExecContext(t.Context(), "UPDATE sessions SET record = ? WHERE id = ?", string(changed), id)
		}
		return err
	})
}
