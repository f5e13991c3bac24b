package provision

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Phase is the step of a start that failed, in the words of the box.
type Phase string

// The phases of this package.
const (
	SessionCreate Phase = "session_create" // the workspace
	DepInstall    Phase = "dep_install"    // dependencies, and packages of npx and uvx
)

// Error says why a process cannot be started.
type Error struct {
	Phase Phase
	// ExitCode is the exit code of the install that failed, nil if none did.
	ExitCode *int
	// Stderr is the end of that install's stderr, at most 500 characters. It may hold
	// secrets of the server's environment; credentials in URLs are removed.
	Stderr string
	// Err is the cause. It wraps the cause of the context if that ended the start.
	Err error
}

// Error returns the text of the cause, with the exit code and the output.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// installError makes the [*Error] of an install that failed with err. It returns nil for nil,
// and an Error unchanged.
func installError(err error) error {
	var known *Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	e := &Error{Phase: DepInstall}
	var failed *commandError
	if errors.As(err, &failed) {
		e.Stderr = failed.said
		if failed.code >= 0 {
			e.ExitCode = &failed.code
		}
	}
	e.Err = fmt.Errorf("dependency install failed%w", detail{err})
	if failed != nil && failed.lacks != "" {
		e.Err = fmt.Errorf("%s%w", failed.lacks, detail{err})
	}
	return e
}

// full returns the error of an install. If the install failed because the disk of the cache is
// full, the error begins with that.
func full(cache string, err error) error {
	var failed *commandError
	ran := errors.As(err, &failed)
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

// detail is an error whose text is the second half of a sentence, such as " (exit 1): no
// network". The first half says what failed.
type detail struct{ err error }

func (d detail) Error() string {
	var failed *commandError
	if !errors.As(d.err, &failed) {
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

// hint adds advice to a failed command whose output has one of these words.
func hint(err error, advice string, words ...string) error {
	var failed *commandError
	if !errors.As(err, &failed) || failed.hint != "" {
		return err
	}
	said := strings.Join(strings.Fields(failed.more), " ") // uv wraps its lines
	if containsAny(said, words...) {
		failed.hint = advice
	}
	return err
}
