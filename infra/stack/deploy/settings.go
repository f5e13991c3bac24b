package main

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// settings are the values of one section of samconfig.toml.
type settings struct {
	section string // the name of the section, which sam takes as --config-env
	stack   string
	region  string // "" for the region that the commands aws and sam use by themselves
	params  map[string]string
	confirm bool // the user is to confirm each change
}

// readSettings reads a section of samconfig.toml. The section may be one that sam deploy --guided has
// written.
func readSettings(text, section string) (settings, error) {
	type parameters struct {
		Stack     string `toml:"stack_name"`
		Region    string `toml:"region"`
		Overrides string `toml:"parameter_overrides"`
		Confirm   bool   `toml:"confirm_changeset"`
	}
	file := map[string]any{}
	if err := toml.Unmarshal([]byte(text), &file); err != nil {
		return settings{}, err
	}
	part, err := toml.Marshal(file[section])
	if err != nil {
		return settings{}, err
	}
	var of struct {
		Global, Deploy struct{ Parameters parameters }
	}
	if err := toml.Unmarshal(part, &of); err != nil {
		return settings{}, fmt.Errorf(`[%s.deploy.parameters]: %w (parameter_overrides is one text: "NAME=VALUE NAME=VALUE")`, section, err)
	}
	g, d := of.Global.Parameters, of.Deploy.Parameters
	s := settings{section: section, stack: cmp.Or(d.Stack, g.Stack), region: cmp.Or(d.Region, g.Region), confirm: d.Confirm}
	if s.stack == "" {
		return s, fmt.Errorf("there is no stack_name in [%s.global.parameters]", section)
	}
	s.params, err = overrides(d.Overrides)
	return s, err
}

// pair matches NAME=VALUE at the beginning of a text. The value is in quotes, as sam writes it, or has
// no spaces.
var pair = regexp.MustCompile(`^\s*(\w+)=("(?:[^"\\]|\\.)*"|[^"\s]\S*|)(?:\s|$)`)

// overrides parses NAME=VALUE pairs, separated by spaces.
func overrides(text string) (map[string]string, error) {
	all := map[string]string{}
	for rest := strings.TrimSpace(text); rest != ""; rest = strings.TrimSpace(rest) {
		m := pair.FindStringSubmatch(rest)
		if m == nil {
			return nil, fmt.Errorf("%q is no parameter; want NAME=VALUE", rest)
		}
		value := m[2]
		if strings.HasPrefix(value, `"`) {
			value = strings.ReplaceAll(value[1:len(value)-1], `\"`, `"`)
		}
		all[m[1]], rest = value, rest[len(m[0]):]
	}
	return all, nil
}
