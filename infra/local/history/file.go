package history

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

// Values of the column "what" of the table "counts". Lower values, from 0 to len(bounds), are
// indexes of the field durations of the type counts.
const (
	whatFailed = len(bounds) + 1 + iota
	whatWakes
	whatRefused
)

// There is no row in "counts" with n = 0. The column "at" has seconds since 1970 in "counts", and
// milliseconds in the other tables.
const schema = `
CREATE TABLE IF NOT EXISTS calls (
	id INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER NOT NULL, tenant TEXT NOT NULL, principal TEXT NOT NULL, server TEXT NOT NULL,
	tool TEXT NOT NULL, client TEXT NOT NULL, session TEXT NOT NULL, trace TEXT NOT NULL, ms REAL NOT NULL, failed INTEGER NOT NULL,
	code TEXT NOT NULL, reason TEXT NOT NULL, woke INTEGER NOT NULL DEFAULT 0, bytes_in INTEGER NOT NULL DEFAULT 0,
	bytes_out INTEGER NOT NULL DEFAULT 0, key TEXT NOT NULL DEFAULT '', address TEXT NOT NULL DEFAULT '', refusal TEXT NOT NULL DEFAULT '') STRICT;
CREATE INDEX IF NOT EXISTS calls_at ON calls (at);
CREATE TABLE IF NOT EXISTS starts (
	id INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER NOT NULL, tenant TEXT NOT NULL, server TEXT NOT NULL, principal TEXT NOT NULL,
	client TEXT NOT NULL, session TEXT NOT NULL, ms REAL NOT NULL, install REAL NOT NULL, failed INTEGER NOT NULL, phase TEXT NOT NULL,
	reason TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS counts (
	step INTEGER NOT NULL, at INTEGER NOT NULL, tenant TEXT NOT NULL, server TEXT NOT NULL, what INTEGER NOT NULL, n INTEGER NOT NULL,
	PRIMARY KEY (step, at, tenant, server, what)) STRICT, WITHOUT ROWID;`

func openFile(path string) (*sql.DB, error) {
	path, err := filepath.Abs(path) // SQLite would take the first element of a relative path in the URL for a host
	if err != nil {
		return nil, fmt.Errorf("open the history of calls: %w", err)
	}
	if err := keepPrivate(path); err != nil {
		return nil, fmt.Errorf("open the history of calls: %w", err)
	}
	u := url.URL{Scheme: "file", Path: path, RawQuery: url.Values{
		"_txlock": {"immediate"}, "_pragma": {"busy_timeout(5000)", "journal_mode(WAL)", "synchronous(NORMAL)"},
	}.Encode()}
	db, err := sql.Open("sqlite", u.String())
	if err == nil {
		db.SetMaxOpenConns(1)
		_, err = db.ExecContext(context.Background(), schema)
	}
	if err == nil {
		err = addColumns(context.Background(), db)
	}
	if err != nil {
		return nil, fmt.Errorf("open the history of calls: %w; move %s away to begin a new one", err, path)
	}
	return db, nil
}

// addColumns adds the columns that the table "calls" lacks in files of release 0.1.0-alpha.2.
func addColumns(ctx context.Context, db *sql.DB) error {
	const number, text = " INTEGER NOT NULL DEFAULT 0", " TEXT NOT NULL DEFAULT ''"
	for _, column := range []string{"woke" + number, "bytes_in" + number, "bytes_out" + number, "key" + text, "address" + text, "refusal" + text} {
		if _, err := db.ExecContext(ctx, `ALTER TABLE calls ADD COLUMN `+column); err != nil && !strings.Contains(err.Error(), "duplicate column") {
			return err
		}
	}
	return nil
}

// keepPrivate makes the file and its write-ahead log readable for this user only, because the
// history says who called what. It creates a missing file, because SQLite would create it readable
// for all users, as earlier releases did.
func keepPrivate(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Chmod(0o600), f.Close()); err != nil {
		return err
	}
	if err := os.Chmod(path+"-wal", 0o600); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// add writes calls, starts and counts in one transaction.
func add(ctx context.Context, db *sql.DB, calls []api.Call, starts []start, all map[minute]counts) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // has no effect after Commit
	insert, err := tx.PrepareContext(ctx, `INSERT INTO calls (at, tenant, principal, server, tool, client, session, trace, ms, failed, code, reason, woke, bytes_in, bytes_out, key, address, refusal)
		VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)`)
	if err != nil {
		return err
	}
	defer func() { _ = insert.Close() }()
	for _, c := range calls {
		if _, err := insert.ExecContext(ctx, c.Time.UnixMilli(), c.Tenant, c.Principal, c.Server, c.Tool, c.Client, c.Session, c.Trace,
			c.MS, c.Failed, c.Code, c.Reason, c.Woke, c.In, c.Out, c.Key, c.Address, c.Refusal); err != nil {
			return err
		}
	}
	for _, s := range starts {
		if _, err := tx.ExecContext(ctx, `INSERT INTO starts (at, tenant, server, principal, client, session, ms, install, failed, phase, reason)
			VALUES (?,?,?,?,?,?,?,?,?,?,?)`, s.Time.UnixMilli(), s.Tenant, s.server, s.Principal, s.Client, s.Session, s.MS, s.InstallMS,
			s.Failed, s.Phase, s.Reason); err != nil {
			return err
		}
	}
	for m, c := range all {
		for _, step := range []int64{60, 3600} {
			if err := addCounts(ctx, tx, step, m, c); err != nil {
				return err
			}
		}
	}
	return tx.Commit()
}

// addCounts adds the counts of a minute to the rows of the period that the minute is in. The
// argument step is the length of the period in seconds: 60 or 3600.
func addCounts(ctx context.Context, tx *sql.Tx, step int64, m minute, c counts) error {
	for what, n := range append(c.durations[:], c.failed, c.wakes, c.refused) {
		if n == 0 {
			continue
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO counts (step, at, tenant, server, what, n) VALUES (?,?,?,?,?,?)
			ON CONFLICT DO UPDATE SET n = n + excluded.n`, step, m.at-m.at%step, m.tenant, m.server, what, n); err != nil {
			return err
		}
	}
	return nil
}

// prune deletes calls and counts that are too old, and all calls and starts except the newest ones.
// The argument newest is how many calls stay.
func prune(ctx context.Context, db *sql.DB, now time.Time, newest int) error {
	for _, s := range []struct {
		text string
		arg  any
	}{
		{`DELETE FROM calls WHERE at < ?`, now.Add(-keptCallAge).UnixMilli()},
		{`DELETE FROM calls WHERE id <= (SELECT MAX(id) FROM calls) - ?`, newest},
		{`DELETE FROM starts WHERE id <= (SELECT MAX(id) FROM starts) - ?`, keptStarts},
		{`DELETE FROM counts WHERE step = 60 AND at < ?`, now.Add(-keptMinutes).Unix()},
		{`DELETE FROM counts WHERE step = 3600 AND at < ?`, now.Add(-keptHours).Unix()},
	} {
		if _, err := db.ExecContext(ctx, s.text, s.arg); err != nil {
			return err
		}
	}
	return nil
}

// where is the WHERE clause of a query, and its arguments.
type where struct {
	text []string
	args []any
}

func (w *where) and(text string, args ...any) {
	w.text, w.args = append(w.text, text), append(w.args, args...)
}

// equal adds the condition that a column has this value, unless value is "".
func (w *where) equal(column, value string) {
	if value != "" {
		w.and(column+" = ?", value)
	}
}

// among adds the condition that the server is one of servers, unless servers is nil.
func (w *where) among(servers []string) {
	if servers == nil {
		return
	}
	args := make([]any, len(servers))
	for i, s := range servers {
		args[i] = s
	}
	w.and("server IN ("+strings.TrimSuffix(strings.Repeat("?,", len(args)), ",")+")", args...)
}

func (w *where) String() string {
	if len(w.text) == 0 {
		return ""
	}
	return " WHERE " + strings.Join(w.text, " AND ")
}

// Calls returns a page of calls, the newest first. The code of an error is Invalid or Unavailable.
func (h *History) Calls(ctx context.Context, q api.CallQuery) (api.Calls, error) {
	page := api.Calls{Calls: []api.Call{}}
	var w where
	if q.After != "" {
		id, err := strconv.ParseInt(q.After, 10, 64)
		if err != nil {
			return page, storage.Errorf(storage.Invalid, "after is %q; want next of the page before", q.After)
		}
		w.and("id < ?", id)
	}
	w.equal("tenant", q.Tenant)
	w.equal("server", q.Server)
	w.equal("principal", q.Principal)
	w.equal("tool", q.Tool)
	w.among(q.Servers)
	if q.Failed {
		w.and("failed = 1")
	}
	if !q.Since.IsZero() {
		w.and("at >= ?", q.Since.UnixMilli())
	}
	var last int64
	err := h.eachRow(ctx, `SELECT id, at, tenant, principal, server, tool, client, session, trace, ms, failed, code, reason, woke, bytes_in, bytes_out, key, address, refusal FROM calls`+
		w.String()+` ORDER BY id DESC LIMIT ?`, append(w.args, q.Limit+1), func(scan func(...any) error) error {
		if len(page.Calls) == q.Limit { // this row belongs to the next page
			page.Next = strconv.FormatInt(last, 10)
			return nil
		}
		var c api.Call
		var at int64
		err := scan(&last, &at, &c.Tenant, &c.Principal, &c.Server, &c.Tool, &c.Client, &c.Session, &c.Trace, &c.MS, &c.Failed,
			&c.Code, &c.Reason, &c.Woke, &c.In, &c.Out, &c.Key, &c.Address, &c.Refusal)
		c.Time = time.UnixMilli(at).UTC()
		page.Calls = append(page.Calls, c)
		return err
	})
	return page, err
}

// eachRow saves the history, so that the file has everything, runs a query, and calls the function
// use for every row. If saving fails, as on a full disk, eachRow reads what the file has;
// [History.Keep] reports the error.
func (h *History) eachRow(ctx context.Context, query string, args []any, use func(scan func(...any) error) error) error {
	_ = h.save()
	h.mu.Lock()
	db := h.db
	h.mu.Unlock()
	if db == nil {
		return nil
	}
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return unavailable(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := use(rows.Scan); err != nil {
			return unavailable(err)
		}
	}
	if err := rows.Err(); err != nil {
		return unavailable(err)
	}
	return nil
}

// Series returns counts by minute, or by hour if q.Since is more than a day ago. The code of an
// error is Unavailable.
func (h *History) Series(ctx context.Context, q api.SeriesQuery) (api.Series, error) {
	series := api.Series{Step: 60, Bounds: bounds[:], Buckets: []api.Bucket{}}
	if time.Since(q.Since) > keptMinutes+time.Minute { // one minute longer, because a client that asks for a day has computed Since some moments ago
		series.Step = 3600
	}
	var w where
	w.and("step = ?", series.Step)
	if !q.Since.IsZero() {
		w.and("at >= ?", q.Since.Unix()-q.Since.Unix()%series.Step)
	}
	w.equal("tenant", q.Tenant)
	w.equal("server", q.Server)
	w.among(q.Servers)
	all := series.Buckets
	err := h.eachRow(ctx, `SELECT at, tenant, server, what, n FROM counts`+w.String()+` ORDER BY at, tenant, server, what`, w.args, func(scan func(...any) error) error {
		var at, n int64
		var tenant, server string
		var what int
		if err := scan(&at, &tenant, &server, &what, &n); err != nil {
			return err
		}
		b := api.Bucket{Time: time.Unix(at, 0).UTC(), Tenant: tenant, Server: server}
		if i := len(all) - 1; i < 0 || !all[i].Time.Equal(b.Time) || all[i].Tenant != tenant || all[i].Server != server {
			b.Durations = make([]int64, len(bounds)+1)
			all = append(all, b)
		}
		to := &all[len(all)-1]
		switch what {
		case whatFailed:
			to.Failed = n
		case whatWakes:
			to.Wakes = n
		case whatRefused:
			to.Refused = n
		default:
			to.Durations[what] = n
			to.Calls += n
		}
		return nil
	})
	series.Buckets = all
	return series, err
}

// keptStarts is how many starts of all servers together are kept.
const keptStarts = 10_000

// Starts returns the newest starts of servers, the newest first. The code of an error is
// Unavailable.
func (h *History) Starts(ctx context.Context, q api.StartQuery) ([]api.Start, error) {
	var w where
	w.equal("tenant", q.Tenant)
	w.equal("server", q.Server)
	all := []api.Start{}
	err := h.eachRow(ctx, `SELECT at, tenant, principal, client, session, ms, install, failed, phase, reason FROM starts`+
		w.String()+` ORDER BY id DESC LIMIT ?`, append(w.args, q.Limit), func(scan func(...any) error) error {
		var s api.Start
		var at int64
		err := scan(&at, &s.Tenant, &s.Principal, &s.Client, &s.Session, &s.MS, &s.InstallMS, &s.Failed, &s.Phase, &s.Reason)
		s.Time = time.UnixMilli(at).UTC()
		all = append(all, s)
		return err
	})
	return all, err
}

// mostPeople limits the result of [History.People].
const mostPeople = 1_000

// People returns the principals that have called tools, the one with the newest call first. It
// returns mostPeople of them at most, and counts only the calls that are kept. The code of an error
// is Unavailable.
func (h *History) People(ctx context.Context, q api.PeopleQuery) ([]api.Person, error) {
	w := callsOf(q)
	all := []api.Person{}
	err := h.eachRow(ctx, `SELECT tenant, principal, COUNT(*), SUM(failed), MAX(at), json_group_array(DISTINCT server),
		json_group_array(DISTINCT client) FROM calls`+w.String()+` GROUP BY tenant, principal ORDER BY MAX(at) DESC, principal LIMIT ?`, append(w.args, mostPeople), func(scan func(...any) error) error {
		var p api.Person
		var at int64
		var servers, clients []byte
		err := scan(&p.Tenant, &p.Principal, &p.Calls, &p.Failed, &at, &servers, &clients)
		if err = errors.Join(err, json.Unmarshal(servers, &p.Servers), json.Unmarshal(clients, &p.Clients)); err != nil {
			return err
		}
		slices.Sort(p.Servers)
		slices.Sort(p.Clients)
		p.Clients = slices.DeleteFunc(p.Clients, func(name string) bool { return name == "" })
		p.LastCall = time.UnixMilli(at).UTC()
		all = append(all, p)
		return nil
	})
	return all, err
}

// callsOf returns the WHERE clause for the calls that q selects.
func callsOf(q api.PeopleQuery) (w where) {
	w.and("refusal = '' AND tool != ''") // leaves out refused requests, whose caller may be unknown, and requests that call no tool
	w.equal("tenant", q.Tenant)
	w.among(q.Servers)
	if !q.Since.IsZero() {
		w.and("at >= ?", q.Since.UnixMilli())
	}
	return w
}

// Busy returns the begin and the end of each call that q selects, sorted by tenant, server and begin.
// The code of an error is Unavailable.
func (h *History) Busy(ctx context.Context, q api.PeopleQuery) (all []api.Busy, err error) {
	w := callsOf(q)
	err = h.eachRow(ctx, `SELECT tenant, server, at - CAST(ms AS INTEGER) AS begun, at FROM calls`+w.String()+` ORDER BY tenant, server, begun`, w.args, func(scan func(...any) error) error {
		var b api.Busy
		var from, to int64
		err := scan(&b.Tenant, &b.Server, &from, &to)
		b.From, b.To = time.UnixMilli(from), time.UnixMilli(to)
		all = append(all, b)
		return err
	})
	return all, err
}

func unavailable(err error) error {
	return storage.Errorf(storage.Unavailable, "the history of calls could not be read; try again").Because(err)
}
