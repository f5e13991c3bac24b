package quota

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// off is written in place of a limit to remove the limit.
const off = "off"

// Limits are the limits of the callers of all servers, or of one. Zero fields are no
// limits.
type Limits struct {
	// Principal, Tenant and Server are rates of tools/call: of each principal, of each
	// tenant, and of all callers of a server together.
	Principal Rate `json:"principal,omitzero"`
	Tenant    Rate `json:"tenant,omitzero"`
	Server    Rate `json:"server,omitzero"`
	// Tools are rates of single tools for each principal, by name. A name may have "*" and
	// "?"; the longest name that fits counts.
	Tools map[string]Rate `json:"tools,omitempty"`
	// Weights say that a call of a tool counts as several, by name as in Tools.
	Weights map[string]int `json:"weights,omitempty"`
	// Concurrent is how many calls of a principal may be in flight.
	Concurrent int `json:"concurrent,omitempty"`
	// Boxes is how many boxes of a tenant may run.
	Boxes int `json:"boxes,omitempty"`
	// Day is how many calls a tenant has on a day, UTC.
	Day int `json:"day,omitempty"`
	// MonthUSD and MonthGB are what a tenant may use in a month, UTC. MonthUSD is money at
	// the prices of the bill. MonthGB is gigabytes (2^30) of requests and answers.
	MonthUSD float64 `json:"month_usd,omitempty"`
	MonthGB  float64 `json:"month_gb,omitempty"`
	// PrincipalUSD and PrincipalGB are the same for each principal of a tenant. They count
	// what the principal's own requests cost, and not boxes, which several may share.
	PrincipalUSD float64 `json:"principal_month_usd,omitempty"`
	PrincipalGB  float64 `json:"principal_month_gb,omitempty"`
}

// capsPrincipals reports whether there are caps for each principal.
func (l Limits) capsPrincipals() bool { return l.PrincipalUSD > 0 || l.PrincipalGB > 0 }

// Settings are the limits of a servers file, or those that an operator has set for a
// tenant.
type Settings struct {
	Limits
	Servers map[string]Limits `json:"servers,omitempty"`
}

// Names of the keys of Limits that count for all servers only, or for one server only.
func onlyOfAll() []string { return []string{"boxes", "principal_month_usd", "principal_month_gb"} }
func onlyOfOne() []string { return []string{"server", "tools", "weights"} }

// MaxSettings bounds the JSON of limits of a tenant, in bytes.
const MaxSettings = 64 << 10

// object is a JSON object whose members are not decoded. null stands for "off".
type object map[string]json.RawMessage

// Sections are limits as JSON objects: of the servers file, and of its servers by name.
type Sections struct {
	File    []byte // nil: no section
	Servers map[string][]byte
}

// Read reads the limits of a servers file. on is false if the file has no section, and
// then nothing is limited. Errors name the key.
func Read(s Sections) (settings Settings, on bool, err error) {
	all, on := object{}, s.File != nil || len(s.Servers) > 0
	if s.File != nil {
		if all, err = readObject(s.File); err != nil {
			return Settings{}, false, fmt.Errorf("limits: %w", err)
		}
		if _, nested := all["servers"]; nested {
			return Settings{}, false, errors.New("limits: servers: put the limits of a server under its own x-dormouse")
		}
	}
	if len(s.Servers) > 0 {
		servers, err := json.Marshal(raws(s.Servers))
		if err != nil {
			return Settings{}, false, fmt.Errorf("limits: %w", err)
		}
		all["servers"] = servers
	}
	settings, err = all.settings()
	return settings, on, err
}

func raws(of map[string][]byte) object {
	o := object{}
	for name, text := range of {
		o[name] = text
	}
	return o
}

func readObject(text []byte) (object, error) {
	var o object
	d := json.NewDecoder(bytes.NewReader(text))
	if err := d.Decode(&o); err != nil || o == nil {
		return nil, errors.New("want a JSON object")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is text after the JSON object; remove it")
	}
	return o, nil
}

// over returns o with the members of own added or replaced. If a member is an object in
// both, over merges the two objects in the same way.
func (o object) over(own object) object {
	all := maps.Clone(o)
	if all == nil {
		all = object{}
	}
	for key, value := range own {
		was, err := readObject(all[key])
		more, wrong := readObject(value)
		if err == nil && wrong == nil {
			value = was.over(more).text()
		}
		all[key] = value
	}
	return all
}

func (o object) text() []byte {
	text, err := json.Marshal(o)
	if err != nil {
		panic("quota: " + err.Error()) // all members were read as JSON
	}
	return text
}

// object returns settings as an object.
func (s Settings) object() (object, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	return readObject(text)
}

// limitNames returns the keys of [Limits].
func limitNames() (names []string) {
	for field := range reflect.TypeFor[Limits]().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}

// settings decodes and checks limits.
func (o object) settings() (Settings, error) {
	var s Settings
	d := json.NewDecoder(bytes.NewReader(o.text()))
	d.DisallowUnknownFields()
	var shape *json.UnmarshalTypeError
	switch err := d.Decode(&s); {
	case errors.As(err, &shape):
		return Settings{}, fmt.Errorf("limits: %s cannot be a %s; want %s", strings.TrimPrefix(shape.Field, "Limits."), shape.Value, wanted(shape.Type))
	case err != nil:
		if name, unknown := strings.CutPrefix(err.Error(), "json: unknown field "); unknown {
			return Settings{}, fmt.Errorf("limits: there is no limit %s; the limits are %s", name, strings.Join(limitNames(), ", "))
		}
		return Settings{}, fmt.Errorf("limits: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if s.Server.N != 0 || len(s.Tools) > 0 || len(s.Weights) > 0 {
		return Settings{}, fmt.Errorf("limits: %s: put these under x-dormouse of a server", strings.Join(onlyOfOne(), ", "))
	}
	if err := s.check(); err != nil {
		return Settings{}, fmt.Errorf("limits: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Servers)) {
		of := s.Servers[name]
		if of.Boxes != 0 || of.capsPrincipals() {
			return Settings{}, fmt.Errorf("limits of server %q: %s: put these under x-dormouse of the file", name, strings.Join(onlyOfAll(), ", "))
		}
		if err := of.check(); err != nil {
			return Settings{}, fmt.Errorf("limits of server %q: %w", name, err)
		}
	}
	return s, nil
}

// wanted says in words which values a type of Limits has.
func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Float64:
		return "a number, such as 20 or 0.5"
	case reflect.Int:
		return "a whole number, such as 5000"
	default:
		return "a JSON object"
	}
}

func (l Limits) check() error {
	for key, n := range map[string]int{"concurrent": l.Concurrent, "boxes": l.Boxes, "day": l.Day} {
		if n < 0 || n > maxCalls {
			return fmt.Errorf("%s is %d; want a number above 0, or null for no limit", key, n)
		}
	}
	if l.Concurrent > maxSlots {
		return fmt.Errorf("concurrent is %d; want at most %d", l.Concurrent, maxSlots)
	}
	for key, n := range map[string]float64{"month_usd": l.MonthUSD, "month_gb": l.MonthGB, "principal_month_usd": l.PrincipalUSD, "principal_month_gb": l.PrincipalGB} {
		if !(n >= 0 && n <= 1e9) || n > 0 && n < 1e-6 {
			return fmt.Errorf("%s is %v; want a number above 0, or null for no limit", key, n)
		}
	}
	for name := range l.Tools {
		if err := checkName(name); err != nil {
			return fmt.Errorf("tools: %w", err)
		}
	}
	for name, n := range l.Weights {
		if err := checkName(name); err != nil {
			return fmt.Errorf("weights: %w", err)
		}
		if n < 0 || n > 1_000_000 {
			return fmt.Errorf("weights: %q is %d; want a number above 0, or null for 1", name, n)
		}
	}
	return nil
}

func checkName(name string) error {
	if _, err := path.Match(name, ""); err != nil || name == "" || len(name) > 128 || strings.ContainsAny(name, `[]\`) {
		return fmt.Errorf(`%q is not a name of tools; want a name, in which "*" and "?" stand for other characters`, clip(name))
	}
	return nil
}

// fits reports whether a name with "*" and "?" names a tool.
func fits(pattern, tool string) bool {
	plain := func(text string) string { return strings.ReplaceAll(session.FoldTool(text), "/", "\x1f") } // "*" stands for it, too
	ok, err := path.Match(plain(pattern), plain(tool))
	return err == nil && ok
}

// nearest returns the longest name in a map that fits a tool.
func nearest[V any](of map[string]V, tool string) (name string, found bool) {
	for pattern := range of {
		longer := len(pattern) > len(name) || len(pattern) == len(name) && (pattern == tool || name != tool && pattern < name)
		if fits(pattern, tool) && (!found || longer) {
			name, found = pattern, true
		}
	}
	return name, found
}

// weight is how many calls a call of a tool counts as.
func (l Limits) weight(tool string) int {
	if name, ok := nearest(l.Weights, tool); ok {
		return max(1, l.Weights[name])
	}
	return 1
}
