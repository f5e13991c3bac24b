package provision

import (
	"errors"
	"fmt"
	"strings"
)

// Phase says which step of a start failed, in the words of the box.
type Phase string

// The phases of this package.
const (
	SessionCreate Phase = "session_create" // the workspace
	DepInstall    Phase = "dep_install"    // dependencies, and packages of npx and uvx
)

// Error is why a process cannot be started.
type Error struct {
	Phase Phase
	// ExitCode is that of the install that failed, nil if none did.
	ExitCode *int
	// Stderr is the end of what that install said, at most 500 characters. Secrets
	// of the server's environment may be in it; credentials in addresses are not.
	Stderr string
	// Err is the cause. It wraps the cause of the context if that ended the start.
	Err error
}

// Error gives the cause, which names the exit code and what was said.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// installError turns what went wrong with an install into an Error.
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
	return e
}

// detail words an error as the rest of a sentence.
type detail struct{ err error }

func (d detail) Error() string {
	var failed *commandError
	if !errors.As(d.err, &failed) {
		return ": " + d.err.Error()
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

// hint adds to a failed command what is to be done, if find has something to say to
// what the command said.
func hint(err error, find func(said string) string) error {
	var failed *commandError
	if errors.As(err, &failed) && failed.hint == "" {
		failed.hint = find(failed.more)
	}
	return err
}
