package main

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
)

// settings are the values of one section of samconfig.toml.
type settings struct {
	section string // of the file, as sam's --config-env
	stack   string
	region  string // "" for the one that the commands use anyway
	params  map[string]string
	confirm bool // a person confirms each change
}

// readSettings reads a section. It parses only tables and strings of TOML, because
// the file has nothing else.
func readSettings(text, section string) (settings, error) {
	s := settings{section: section, params: map[string]string{}}
	header := regexp.MustCompile(`^\[([\w.-]+)\]$`)
	pair := regexp.MustCompile(`^(\w+)\s*=\s*"([^"\\]*)"$`)
	table := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if m := header.FindStringSubmatch(line); m != nil {
			table = m[1]
			continue
		}
		m := pair.FindStringSubmatch(line)
		switch {
		case table == section+".global.parameters" && m != nil && m[1] == "stack_name":
			s.stack = m[2]
		case table == section+".global.parameters" && m != nil && m[1] == "region":
			s.region = m[2]
		case table == section+".deploy.parameters" && regexp.MustCompile(`^confirm_changeset\s*=\s*true$`).MatchString(line):
			s.confirm = true
		case table != section+".deploy.parameters" || !strings.HasPrefix(line, "parameter_overrides"):
		case m == nil:
			return s, fmt.Errorf(`parameter_overrides of %s must be one string on one line: "NAME=VALUE NAME=VALUE"`, section)
		default:
			var err error
			if s.params, err = overrides(m[2]); err != nil {
				return s, err
			}
		}
	}
	if s.stack == "" {
		return s, fmt.Errorf("there is no stack_name in [%s.global.parameters]", section)
	}
	return s, nil
}

const (
	functionName = 64          // the most characters that Lambda takes
	longestEnd   = "-box-2048" // of the names of functions, of which boxes.yaml has the longest
)

// fits checks that the names of the stack's functions, which begin with its own, are not too
// long. Otherwise CloudFormation would find out in the middle of a deployment.
func (s settings) fits() error {
	if most := functionName - len(longestEnd); len(s.stack) > most {
		return fmt.Errorf("the name of the stack has %d characters, and Lambda takes %d for the function %s%s: name the stack with at most %d in [%s.global.parameters] of samconfig.toml",
			len(s.stack), functionName, s.stack, longestEnd, most, s.section)
	}
	return nil
}

// use has the commands work in the section's region. sam reads it itself.
func (s settings) use() error {
	if s.region == "" {
		return nil
	}
	return errors.Join(os.Setenv("AWS_REGION", s.region), os.Setenv("AWS_DEFAULT_REGION", s.region))
}

// overrides parses NAME=VALUE pairs, separated by spaces.
func overrides(text string) (map[string]string, error) {
	all := map[string]string{}
	for _, word := range strings.Fields(text) {
		name, value, ok := strings.Cut(word, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("%q is no parameter; want NAME=VALUE", word)
		}
		all[name] = value
	}
	return all, nil
}
