package wiring

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/credentials"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// Environment variables for fields of [Settings]. All are optional.
const (
	EnvIdle         = "DORMOUSE_IDLE"          // how long a box stays awake without work, unless its server sets idle_seconds; a duration as in EnvLife
	EnvWaitingCalls = "DORMOUSE_WAITING_CALLS" // how many calls may wait for a box that is not awake; further ones fail with Busy; 0 for any number
	EnvLife         = "DORMOUSE_SESSION_LIFE"  // a duration such as 90s or 36h; a bare number is in seconds; see sessions.Limits

	// EnvConnectSecrets has a JSON object with the client secret of each third party in
	// x-dormouse.connect, by its name there. "none" means that the function calls no third party.
	EnvConnectSecrets = "DORMOUSE_CONNECT_SECRETS" //nolint:gosec // the name of a variable
)

// Local has the settings that the emulator of AWS passes to functions. On AWS it is the zero value.
type Local struct {
	URL      string          // URL of the emulators of Lambda's Invoke API, EventBridge Scheduler and ECS, with a secret path
	Loopback bool            // the endpoints listen on loopback only, so users may sign in with any name
	Since    time.Time       // when the emulators started; boxes that started earlier ended with an earlier emulator
	Place    string          // where boxes run; "" runs them as processes of this machine
	Limits   sessions.Limits // which tests shorten

	Origins    []string // the value for Settings.Origins
	ShowErrors bool     // the value for Settings.ShowErrors
}

// Read sets Limits.Life, Idle, WaitingCalls, ConnectSecrets and NoConnect from environment
// variables. It leaves a field unchanged if its variable is not set. An error names the variable and
// its valid values.
func (s *Settings) Read(getenv func(string) string) error {
	if text := getenv(EnvConnectSecrets); text == "none" {
		s.NoConnect = true
	} else if text != "" {
		var err error
		if s.ConnectSecrets, err = credentials.ReadSecrets(text); err != nil {
			return fmt.Errorf("%s is %w", EnvConnectSecrets, err)
		}
	}
	for name, to := range map[string]*time.Duration{EnvLife: &s.Limits.Life, EnvIdle: &s.Idle} {
		text := getenv(name)
		if text == "" {
			continue
		}
		d, err := duration(text)
		if err != nil {
			return fmt.Errorf("%s is %q: %w", name, text, err)
		}
		*to = d
	}
	if text := getenv(EnvWaitingCalls); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return fmt.Errorf("%s is %q: want a whole number, 0 for no limit", EnvWaitingCalls, text)
		}
		s.WaitingCalls = n
	}
	return nil
}

// duration parses a positive duration: a number of seconds, or a Go duration with units.
func duration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if seconds, bare := strconv.ParseFloat(text, 64); bare == nil && seconds < 1e9 {
		d, err = time.Duration(seconds*float64(time.Second)), nil
	}
	if err != nil || d <= 0 {
		return 0, errors.New("want a time above 0 such as 90s, 25m or 36h; a bare number is seconds")
	}
	return d, nil
}
