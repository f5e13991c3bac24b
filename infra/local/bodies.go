package local

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"gopkg.in/natefinch/lumberjack.v2"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	said "github.com/dormouse-mcp/dormouse/shared/operate/bodies"
)

// Bounds of the files with the bodies of calls: the size of a file in MiB, and the number of older
// files.
const (
	bodySize  = 32
	bodyFiles = 60
)

// bodyFolder is the folder, in the data folder, of encrypted files with the bodies of calls.
const bodyFolder = "bodies"

// keptBodies writes the bodies of calls and of their results to files, for auditors. Each line is
// encrypted.
type keptBodies struct {
	secret []byte
	out    *slog.Logger

	mu   sync.Mutex
	file *lumberjack.Logger
	day  string // day of the newest line, "" for none
}

// openBodies returns the keptBodies of a data folder. For lost, see [bestEffortLog].
func openBodies(folder string, secret []byte, lost func(error)) *keptBodies {
	k := &keptBodies{secret: secret, file: &lumberjack.Logger{
		Filename: filepath.Join(folder, bodyFolder, "bodies.log"), MaxSize: bodySize, MaxBackups: bodyFiles, MaxAge: int(said.MaxAge / (24 * time.Hour)),
	}}
	if at, err := os.Stat(k.file.Filename); err == nil {
		k.day = at.ModTime().UTC().Format(time.DateOnly)
	}
	k.out = slog.New(slog.NewJSONHandler(&bestEffortLog{to: k, lost: lost}, nil))
	return k
}

// lines returns the log that bodies are written to. For a nil k it returns nil; [Check] has a nil
// k, because it opens no data folder.
func (k *keptBodies) lines() *slog.Logger {
	if k == nil {
		return nil
	}
	return k.out
}

// Write writes a line. The first line of a day begins a new file, because lines are deleted by
// whole files.
func (k *keptBodies) Write(line []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.turn(time.Now()); err != nil {
		return 0, err
	}
	return k.file.Write(line)
}

// turn begins a new file if the newest line is of an earlier day. The caller holds mu.
func (k *keptBodies) turn(now time.Time) error {
	today := now.UTC().Format(time.DateOnly)
	before := k.day
	if k.day = today; before == "" || before == today {
		return nil
	}
	return k.file.Rotate()
}

// prune deletes old files until ctx ends, even if no bodies come. It begins a new file each
// day, and that deletes the old ones.
func (k *keptBodies) prune(ctx context.Context) {
	for {
		if files, err := k.files(); err == nil && len(files) > 0 {
			k.mu.Lock()
			_ = k.turn(time.Now()) // after an error, prune tries again in an hour
			k.mu.Unlock()
		}
		if storage.Rest(ctx, time.Hour) != nil {
			return
		}
	}
}

// files returns the files, the oldest first.
func (k *keptBodies) files() ([]string, error) {
	all, err := filepath.Glob(filepath.Join(filepath.Dir(k.file.Filename), "bodies*.log"))
	slices.SortFunc(all, func(a, b string) int { // the current file, which has no time in its name, is the newest
		return strings.Compare(strings.TrimSuffix(a, ".log")+"~", strings.TrimSuffix(b, ".log")+"~")
	})
	return all, err
}

// read returns the bodies that q selects, the newest call first. The code of an error is
// Unavailable.
func (k *keptBodies) read(ctx context.Context, q said.Query) ([]said.Body, error) {
	files, err := k.files()
	if err != nil {
		return nil, err
	}
	r := said.NewReader(q, k.secret)
	for _, name := range files {
		if err := readLines(ctx, name, r); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, storage.Errorf(storage.Unavailable, "what calls said could not be read; try again").Because(err)
		}
	}
	return r.Bodies(), nil
}

func readLines(ctx context.Context, name string, to *said.Reader) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // nothing was written to it
	lines := bufio.NewReader(f)
	for ctx.Err() == nil {
		text, err := lines.ReadBytes('\n')
		var line said.Line
		whole := text[max(0, bytes.LastIndex(text, []byte(`{"time":`))):] // without a line before it that a full disk or a loss of power has cut
		if json.Unmarshal(whole, &line) == nil {
			to.Add(line)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (k *keptBodies) close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.file.Close()
}
