package dormouse

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/dormouse-mcp/dormouse/infra/local"
)

// An upNote is a file in the user's runtime folder while dormouse run is up. By it, commands find
// dormouse run from any working directory.

type upNote struct {
	Data string `json:"data"` // absolute path of the data folder
	URL  string `json:"url"`
}

// notesFolder returns the folder of the notes. It returns "" if the folder is missing, or if
// another user could write to it.
func notesFolder() string {
	folder := placeOfNotes()
	info, err := os.Lstat(folder)
	if err != nil || !info.IsDir() || info.Mode().Perm()&0o022 != 0 {
		return ""
	}
	if of, ok := info.Sys().(*syscall.Stat_t); !ok || int(of.Uid) != os.Getuid() {
		return ""
	}
	return folder
}

func placeOfNotes() string {
	if runtime := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(runtime) {
		return filepath.Join(runtime, "dormouse")
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("dormouse-%d", os.Getuid()))
}

// leave writes the note, and returns a function that removes it.
func (n upNote) leave() (forget func()) {
	_ = os.Mkdir(placeOfNotes(), 0o700) // fails if the folder exists; notesFolder checks it
	folder, text := notesFolder(), []byte(nil)
	data, err := filepath.Abs(n.Data)
	if err == nil {
		n.Data = data
		text, err = json.Marshal(n)
	}
	if err != nil || folder == "" {
		return func() {}
	}
	sum := sha256.Sum256([]byte(data))
	path := filepath.Join(folder, hex.EncodeToString(sum[:8])+".json")
	_ = os.WriteFile(path, text, 0o600) // an error is ignored: the user can still name the data folder
	return func() { _ = os.Remove(path) }
}

// allUp returns the notes of every dormouse run of this user that is up. It removes the other
// notes.
func allUp(ctx context.Context) (all []upNote) {
	folder := notesFolder()
	if folder == "" {
		return nil
	}
	paths, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		return nil
	}
	for _, path := range paths {
		var n upNote
		text, err := os.ReadFile(path)
		if err != nil || json.Unmarshal(text, &n) != nil {
			continue
		}
		to, _, up, err := local.Control(ctx, n.Data)
		switch {
		case err == nil && up:
			to.CloseIdleConnections()
			all = append(all, n)
		case err == nil:
			_ = os.Remove(path)
		}
	}
	return all
}

// folder returns the data folder for a command that reads from a dormouse run: the folder that the
// user has named, or the one in the working directory, or else that of the only dormouse run that
// is up.
func (d dataFlag) folder(ctx context.Context) (string, error) {
	if here, err := filepath.Abs(defaultData); err != nil || d.Data != here || exists(d.Data) {
		return d.Data, nil
	}
	data, err := target{}.elsewhere(ctx)
	return cmp.Or(data, d.Data), err
}

// elsewhere returns the data folder of the only dormouse run that is up. If the command names a
// data folder, or the working directory has one, the result is "".
func (t target) elsewhere(ctx context.Context) (data string, err error) {
	if t.Data != "" || os.Getenv(dataEnv) != "" || exists(defaultData) {
		return "", nil
	}
	all := allUp(ctx)
	switch len(all) {
	case 0:
		return "", nil
	case 1:
		return all[0].Data, nil
	}
	return "", failure{exitNotUp, errors.New("several machines are up; name one:" + listed(all))}
}

// listed returns a line for each dormouse run, with the flag that selects it.
func listed(all []upNote) (lines string) {
	for _, n := range all {
		lines += fmt.Sprintf("\n  %s: --data %s", n.URL, quoted(n.Data))
	}
	return lines
}
