package boot

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/dynamostore"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// storeForms is what DORMOUSE_STORE may be in this build.
const storeForms = sqliteForm + "dynamodb:" + dynamostore.PlaceForm

// openStore opens the store that EnvStore names. What it keeps is bounded by the
// limits, which have been read before.
func openStore(name string, limits session.Limits) (session.Store, error) {
	kind, where, _ := strings.Cut(name, ":")
	switch {
	case name == "":
		return nil, fmt.Errorf("%s is not set; want %s", EnvStore, storeForms)
	case where == "":
	case kind == "sqlite":
		return named(openSQLite(where, limits))
	case kind == "dynamodb":
		return named(openTable(where, limits))
	}
	return nil, fmt.Errorf("%s is %q; want %s", EnvStore, name, storeForms)
}

func named(s session.Store, err error) (session.Store, error) {
	if err != nil {
		return nil, fmt.Errorf("%s: %w", EnvStore, err)
	}
	return s, nil
}

// openTable makes the store on a table that is there already. The client is made
// without the SDK's config module: that reads files and profiles, while a function
// has its region and its credentials in the environment.
func openTable(where string, limits session.Limits) (session.Store, error) {
	place, err := dynamostore.ParsePlace(where, cmp.Or(os.Getenv(envRegion), os.Getenv("AWS_DEFAULT_REGION")))
	if err != nil {
		return nil, err
	}
	return dynamostore.New(place.Client(credentials(), nil), place.Table, dynamostore.Options{Age: limits.EventAge, Life: limits.Life}), nil
}

// limits reads the times of sessions that the environment sets; the others stay
// zero, which stands for their defaults.
func limits() (l session.Limits, err error) {
	for name, to := range map[string]*time.Duration{
		EnvLife: &l.Life, EnvInitTimeout: &l.InitTimeout, EnvEventAge: &l.EventAge, EnvHold: &l.Hold,
	} {
		text := os.Getenv(name)
		if text == "" {
			continue
		}
		if *to, err = duration(text); err != nil {
			return l, fmt.Errorf("%s is %q: %w", name, text, err)
		}
	}
	return l, nil
}

// duration reads a time above 0: a number of seconds, or one with units as Go
// writes them.
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
