package provision

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Phase is the step of a start that failed.
type Phase string

// The steps of a start that can fail in this package.
const (
	SessionCreate Phase = "session_create" // the workspace could not be made
	DepInstall    Phase = "dep_install"    // the dependencies, or a package of npx or uvx, could not be installed
)

// Error says why a process cannot be started.
type Error struct {
	Phase Phase
	// ExitCode is the exit code of the installer that failed, nil if there is none.
	ExitCode *int
	// Stderr is the end of that installer's stderr, at most 500 characters. Stderr may contain
	// secrets of the server's environment; credentials in URLs are removed.
	Stderr string
	// Err is the cause. If the context ended the start, Err wraps the cause of the context.
	Err error
}

// Error returns the text of the cause, with the exit code and the output of the installer.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// installError returns the [*Error] for an install that failed with err. If err is nil or is an
// [*Error] already, it returns err.
func installError(err error) error {
	if _, known := errors.AsType[*Error](err); known || err == nil {
		return err
	}
	e := &Error{Phase: DepInstall}
	failed, ran := errors.AsType[*commandError](err)
	if ran {
		e.Stderr = failed.said
		if failed.code >= 0 {
			e.ExitCode = &failed.code
		}
	}
	e.Err = fmt.Errorf("dependency install failed%w", detail{err})
	if ran && failed.lacks != "" {
		e.Err = fmt.Errorf("%s%w", failed.lacks, detail{err})
	}
	return e
}

// full returns err, the error of an install. If the disk of the cache is full, the text of the
// result begins with that reason.
func full(cache string, err error) error {
	failed, ran := errors.AsType[*commandError](err)
	told := ran && containsAny(failed.more, "ENOSPC", "No space left on device")
	if !told && !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return err
	}
	text := "the disk of the cache " + cache + " is full"
	var st unix.Statfs_t
	if unix.Statfs(cache, &st) == nil && st.Bsize > 0 {
		gb := func(blocks uint64) float64 { return float64(blocks*uint64(st.Bsize)) / 1e9 }
		text += fmt.Sprintf(" (%.1f of %.1f GB free)", gb(st.Bavail), gb(st.Blocks))
	}
	text += ": free some room, or set DORMOUSE_CACHE to a folder on another disk"
	if ran {
		failed.lacks = text
		return err
	}
	return fmt.Errorf("%s: %w", text, err)
}

// detail wraps an error so that its text continues another one: the text begins with ": ", or says
// first how a command ended, as in " (exit 1): no network".
type detail struct{ err error }

func (d detail) Error() string {
	failed, ran := errors.AsType[*commandError](d.err)
	if !ran {
		return ": " + d.err.Error()
	}
	if failed.lacks != "" {
		return ": " + failed.said
	}
	text := fmt.Sprintf(" (exit %d)", failed.code)
	if failed.code < 0 {
		text = " (" + failed.how + ")"
	}
	text = strings.TrimSuffix(text+": "+failed.said, ": ")
	if failed.hint != "" {
		text += "; " + failed.hint
	}
	return text
}

func (d detail) Unwrap() error { return d.err }

// hint adds advice to the error of a failed command if the command's output has one of these
// words.
func hint(err error, advice string, words ...string) error {
	failed, ran := errors.AsType[*commandError](err)
	if !ran || failed.hint != "" {
		return err
	}
	said := strings.Join(strings.Fields(failed.more), " ") // undo the line breaks of uv
	if containsAny(said, words...) {
		failed.hint = advice
	}
	return err
}
