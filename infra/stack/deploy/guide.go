package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// parameter is what template.yaml says of one of its parameters.
type parameter struct {
	usual, description string
	pattern            *regexp.Regexp // nil for any
	values             []string       // none for any
	number             bool
	least, most        *float64
}

// parameters reads the section Parameters of a template in which each value stands on the
// line of its name, as in template.yaml. With them the program can refuse a bad value
// before the build; CloudFormation would refuse it only after the build.
func parameters(template string) (map[string]parameter, error) {
	_, text, _ := strings.Cut(template, "\nParameters:\n")
	all, name := map[string]parameter{}, ""
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "  ") {
			break
		}
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		value = strings.Trim(value, `"`)
		if !strings.HasPrefix(line, "   ") {
			name = strings.TrimSuffix(key, ":")
			all[name] = parameter{}
			continue
		}
		p := all[name]
		var err error
		switch key {
		case "Type":
			p.number = value == "Number"
		case "Default":
			p.usual = value
		case "Description":
			p.description = value
		case "AllowedPattern":
			p.pattern, err = regexp.Compile(value)
		case "AllowedValues":
			for one := range strings.SplitSeq(strings.Trim(value, "[]"), ",") {
				p.values = append(p.values, strings.Trim(one, ` "`))
			}
		case "MinValue", "MaxValue":
			var bound float64
			bound, err = strconv.ParseFloat(value, 64)
			if key == "MinValue" {
				p.least = &bound
			} else {
				p.most = &bound
			}
		}
		if err != nil {
			return nil, fmt.Errorf("parameter %s: %s: %w", name, key, err)
		}
		all[name] = p
	}
	return all, nil
}

// check returns an error if the parameter cannot have a value.
func (p parameter) check(value string) error {
	if len(p.values) > 0 && !slices.Contains(p.values, value) {
		return fmt.Errorf("%q is none of %s", value, strings.Join(p.values, ", "))
	}
	if p.pattern != nil && !p.pattern.MatchString(value) {
		return fmt.Errorf("%q has not the form %s", value, p.pattern)
	}
	if p.number {
		n, err := strconv.ParseFloat(value, 64)
		switch {
		case err != nil:
			return fmt.Errorf("%q is no number", value)
		case p.least != nil && n < *p.least:
			return fmt.Errorf("%s is less than %v", value, *p.least)
		case p.most != nil && n > *p.most:
			return fmt.Errorf("%s is more than %v", value, *p.most)
		}
	}
	return nil
}

// known checks values by the template, before anything is built.
func known(template map[string]parameter, values map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		p, ok := template[name]
		if !ok {
			return fmt.Errorf("template.yaml has no parameter %s", name)
		}
		if err := p.check(values[name]); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// question is a question of the guide. Without text it asks for the parameter of this
// name. check is a further check of the answer, nil for none.
type question struct {
	name, text, usual string
	when              func(map[string]string) bool // of the answers before; nil for always
	check             func(string) error
}

// stackName matches the stack names that CloudFormation accepts; [settings.fits] checks
// their length.
var stackName = regexp.MustCompile(`^[a-zA-Z][-a-zA-Z0-9]*$`)

func form(pattern *regexp.Regexp) func(string) error {
	return func(value string) error { return parameter{pattern: pattern}.check(value) }
}

// questions returns what the guide asks, in order.
func questions(of settings, region string) []question {
	with := func(name string) func(map[string]string) bool {
		return func(answers map[string]string) bool { return answers[name] != "" }
	}
	return []question{
		{name: "stack", text: "Name of the stack.", usual: of.stack, check: func(name string) error {
			return errors.Join(form(stackName)(name), settings{stack: name, section: of.section}.fits())
		}},
		{name: "region", text: "Region of AWS.", usual: region, check: form(regexp.MustCompile(`^[a-z]{2,3}(-[a-z]+)+-\d$`))},
		{name: "Access"},
		{name: "DomainName"},
		{name: "CertificateArn", when: with("DomainName"), check: some},
		{name: "HostedZoneId", when: with("DomainName")},
		{name: "PublicUrl", when: func(a map[string]string) bool { return a["Access"] != "keys" && a["DomainName"] == "" }, check: some},
		{name: "VpcId"},
		{name: "SubnetIds", when: with("VpcId"), check: some},
		{name: "AlarmEmail"},
	}
}

func some(value string) error {
	if value == "" {
		return errors.New("this one is needed")
	}
	return nil
}

// guide asks for the settings of a first stack, writes them into samconfig.toml, and
// returns the stack of the chosen name, nil if there is none. Without a terminal it asks
// nothing, and prints which settings it uses.
func (p *program) guide(ctx context.Context, template map[string]parameter) (*stack, error) {
	region := cmp.Or(p.config.region, os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"))
	if region == "" { // the command fails where there is none
		region, _ = p.aws(ctx, "configure", "get", "region")
	}
	if p.in == nil {
		p.say("Nothing is asked without a terminal: the stack is %s in %s, with the defaults of template.yaml and what samconfig.toml and ARGS name.",
			p.config.stack, cmp.Or(region, "the region of aws"))
		return nil, nil
	}
	p.say("This is the first deployment of %s. An empty answer takes what is in brackets. The answers are kept in samconfig.toml.", p.config.stack)
	answers, lines := map[string]string{}, bufio.NewReader(p.in)
	for _, q := range questions(p.config, region) {
		if q.when != nil && !q.when(answers) {
			continue
		}
		answer, err := p.ask(lines, q, template)
		if err != nil {
			return nil, err
		}
		answers[q.name] = answer
	}
	name, region := answers["stack"], answers["region"]
	delete(answers, "stack")
	delete(answers, "region")
	params := maps.Clone(p.config.params)
	for name, answer := range answers {
		if delete(params, name); answer != template[name].usual {
			params[name] = answer
		}
	}
	text, err := os.ReadFile("samconfig.toml")
	if err != nil {
		return nil, err
	}
	written, err := withAnswers(string(text), p.config.section, name, region, params)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile("samconfig.toml", []byte(written), 0o644); err != nil { //nolint:gosec // as it was
		return nil, err
	}
	if p.config, err = readSettings(written, p.config.section); err != nil {
		return nil, err
	}
	if err := p.config.use(); err != nil {
		return nil, err
	}
	return p.describe(ctx)
}

// answered asks for one answer, and returns an error for any other.
func (p *program) answered(want, question string, args ...any) error {
	if p.in == nil {
		return errors.New("this asks for a confirmation, and there is no terminal: run it at one, or with YES=1")
	}
	_, _ = fmt.Fprintf(p.out, question+": ", args...)
	if line, err := bufio.NewReader(p.in).ReadString('\n'); err != nil || strings.TrimSpace(line) != want {
		return errors.New("not confirmed: nothing was changed")
	}
	return nil
}

// ask asks until an answer is good.
func (p *program) ask(lines *bufio.Reader, q question, template map[string]parameter) (string, error) {
	of := template[q.name]
	text, usual := q.text, q.usual
	if text == "" {
		text, usual = of.description, cmp.Or(p.config.params[q.name], of.usual)
	}
	for {
		p.say("\n%s", text)
		name := q.name
		if len(of.values) > 0 {
			name += " (" + strings.Join(of.values, ", ") + ")"
		}
		_, _ = fmt.Fprintf(p.out, "%s [%s]: ", name, usual)
		line, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return "", errors.New("the answers ended; nothing was written or deployed")
		}
		if err != nil {
			return "", err
		}
		answer := strings.TrimSpace(line)
		if answer == "" {
			answer = usual
		}
		if strings.ContainsAny(answer, " \"\\") {
			err = errors.New("spaces, quotes and backslashes cannot stand in samconfig.toml")
		} else if err = of.check(answer); err == nil && q.check != nil {
			err = q.check(answer)
		}
		if err == nil {
			return answer, nil
		}
		p.say("%v", err)
	}
}

// withAnswers returns samconfig.toml with the answers in a section, and everything else as
// it was.
func withAnswers(text, section, stack, region string, params map[string]string) (string, error) {
	var out strings.Builder
	table, named := "", false
	for line := range strings.Lines(text) {
		trimmed := strings.TrimSpace(line)
		if strings.HasPrefix(trimmed, "[") {
			table = strings.Trim(trimmed, "[]")
		}
		key, _, _ := strings.Cut(trimmed, " ")
		switch {
		case table == section+".global.parameters" && key == "stack_name":
			named = true
			line = fmt.Sprintf("stack_name = %q\nregion = %q\n", stack, region)
		case table == section+".global.parameters" && key == "region", table == section+".deploy.parameters" && key == "parameter_overrides":
			continue
		case table == section+".deploy.parameters" && key == "s3_prefix":
			line = fmt.Sprintf("s3_prefix = %q\n", stack)
		}
		out.WriteString(line)
		if trimmed == "["+section+".deploy.parameters]" && len(params) > 0 {
			pairs := []string{}
			for _, name := range slices.Sorted(maps.Keys(params)) {
				pairs = append(pairs, name+"="+params[name])
			}
			fmt.Fprintf(&out, "parameter_overrides = %q\n", strings.Join(pairs, " "))
		}
	}
	if !named {
		return "", fmt.Errorf("samconfig.toml has no stack_name in [%s.global.parameters]", section)
	}
	return out.String(), nil
}
