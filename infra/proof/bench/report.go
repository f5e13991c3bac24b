package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// results is the content of .bench/results.json: the last measurement of each part.
type results struct {
	Machine string             `json:"machine"`
	Parts   map[string]partRun `json:"parts"`
	Samples samples            `json:"samples"`
}

// partRun is how a part of the benchmark was measured.
type partRun struct {
	Began   time.Time         `json:"began"`
	Server  string            `json:"server"`
	Rounds  int               `json:"rounds"`
	Scale   float64           `json:"scale"`   // the factor of all times
	Busy    string            `json:"busy"`    // load averages of the machine before the part began
	Group   bool              `json:"group"`   // clients, hosts and servers were one cpu group
	Missing map[string]string `json:"missing"` // programs that were not measured, and why
	Notes   []string          `json:"notes"`   // what failed
}

// write writes results.json, and prints the tables.
func (s *suite) write() error {
	file := filepath.Join(s.options.out, "results.json")
	r, err := readResults(file)
	if err != nil {
		return err
	}
	r.merge(s.ran, s.found)
	if err := os.MkdirAll(s.options.out, 0o755); err != nil {
		return err
	}
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, append(text, '\n'), 0o644); err != nil {
		return err
	}
	now := results{Machine: r.Machine, Parts: s.ran, Samples: s.found}
	if err := now.tables(s.out); err != nil {
		return err
	}
	if s.options.publish == "" {
		return nil
	}
	return errors.Join(r.publish(s.options.publish), r.document(s.place.root))
}

// readResults reads the results of earlier runs. It is no error if there are none.
func readResults(file string) (results, error) {
	r := results{Parts: map[string]partRun{}}
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(text, &r); err != nil || r.Parts == nil {
		return r, fmt.Errorf("%s is not what this program writes; remove it: %w", file, err)
	}
	return r, nil
}

// merge replaces the results of the parts that were measured in this run.
func (r *results) merge(ran map[string]partRun, found samples) {
	if len(ran) > 0 {
		r.Machine = machine()
	}
	replaced := func(x sample) bool {
		part := x.Part
		if part == programsTable {
			part = "latency"
		}
		_, ok := ran[part]
		return ok
	}
	r.Samples = append(slices.DeleteFunc(r.Samples, replaced), finite(found)...)
	maps.Copy(r.Parts, ran)
}

// finite leaves out values that could not be measured, because JSON has no NaN.
func finite(all samples) samples {
	kept := samples{}
	for _, x := range all {
		if !math.IsNaN(x.Value) && !math.IsInf(x.Value, 0) {
			kept = append(kept, x)
		}
	}
	return kept
}

// busy returns the load of the machine, over 1, 5 and 15 minutes.
func busy() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(text))[:3], ", ")
}

// machine describes the machine in one line.
func machine() string {
	cpu := "CPU unknown"
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "model name" {
				cpu = strings.TrimSpace(value)
			}
		}
	}
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease") // "" where there is none
	return fmt.Sprintf("%d cores (%s), %s %s, %s", runtime.NumCPU(), cpu, runtime.GOOS, release(string(kernel)), runtime.Version())
}

// release returns the first two numbers of a kernel's version.
func release(kernel string) string {
	numbers := strings.SplitN(strings.TrimSpace(kernel), ".", 3)
	return strings.Join(numbers[:min(2, len(numbers))], ".")
}

func (r results) tables(w io.Writer) error {
	var err error
	for _, p := range parts() {
		err = errors.Join(err, r.table(w, p))
	}
	err = errors.Join(err, r.table(w, part{name: programsTable, about: "CPU a call at 16, of each program that lived all the time, ms"}))
	return err
}

// table writes a part of the benchmark in Markdown: a row for each compared program with min /
// median / max over the rounds, and the ratios of values of the same round.
func (r results) table(w io.Writer, p part) error {
	names := r.Samples.ran(p.name, peerNames())
	if len(names) == 0 {
		return nil
	}
	var b strings.Builder
	metrics := r.Samples.metrics(p.name)
	fmt.Fprintf(&b, "\n## %s: %s\n\n", p.name, p.about)
	if run, ok := r.Parts[p.name]; ok {
		b.WriteString(run.String() + "\n\n")
	}
	b.WriteString("| | n |")
	for _, m := range metrics {
		fmt.Fprintf(&b, " %s%s |", m.Metric, inUnit(m.Unit))
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|", len(metrics)) + "\n")
	for _, name := range names {
		rounds := 0
		for _, m := range metrics {
			rounds = max(rounds, r.Samples.spread(p.name, name, m.Metric).N)
		}
		fmt.Fprintf(&b, "| %s | %d |", name, rounds)
		for _, m := range metrics {
			b.WriteString(" " + cell(r.Samples.spread(p.name, name, m.Metric)) + " |")
		}
		b.WriteString("\n")
	}
	for _, base := range p.bases {
		r.ratios(&b, p, base, names, metrics)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// ratios writes each program's values divided by those of the program base in the same round, for each
// metric with a unit. It writes nothing if base was not measured.
func (r results) ratios(b *strings.Builder, p part, base string, names []string, metrics []sample) {
	metrics = slices.DeleteFunc(slices.Clone(metrics), func(m sample) bool { return m.Unit == "" })
	if !slices.Contains(names, base) {
		return
	}
	var rows strings.Builder
	for _, name := range names {
		if name == base {
			continue
		}
		fmt.Fprintf(&rows, "| %s |", name)
		for _, m := range metrics {
			rows.WriteString(" " + cell(r.Samples.ratio(p.name, name, base, m.Metric)) + " |")
		}
		rows.WriteString("\n")
	}
	fmt.Fprintf(b, "\nOver %s in the same round:\n\n| peer |", base)
	for _, m := range metrics {
		fmt.Fprintf(b, " %s |", m.Metric)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(metrics)) + "\n" + rows.String())
}

func inUnit(unit string) string {
	if unit == "" {
		return ""
	}
	return ", " + unit
}

// cell returns min / median / max, or one number if they are equal.
func cell(s spread) string {
	switch {
	case s.N == 0:
		return "–"
	case figure(s.Min) == figure(s.Max):
		return figure(s.Mid)
	default:
		return figure(s.Min) + " / " + figure(s.Mid) + " / " + figure(s.Max)
	}
}

// figure formats a value with about three significant digits.
func figure(v float64) string {
	switch a := math.Abs(v); {
	case a == math.Trunc(a), a >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case a >= 0.1:
		return strconv.FormatFloat(v, 'f', 2, 64)
	default:
		return strconv.FormatFloat(v, 'f', 3, 64)
	}
}

// String describes how the part was measured.
func (run partRun) String() string {
	text := fmt.Sprintf("%s, hosted server: %s, load of the machine before it: %s.", run.Began.Format("2006-01-02 15:04 UTC"), run.Server, run.Busy)
	if run.Group {
		text += " Clients, hosts and servers were one cpu group."
	}
	if run.Scale != 1 {
		text += fmt.Sprintf(" Times were %g of the usual ones.", run.Scale)
	}
	for _, name := range slices.Sorted(maps.Keys(run.Missing)) {
		text += fmt.Sprintf("\n\nNot measured: %s (%.200s).", name, run.Missing[name])
	}
	for _, note := range slices.Compact(slices.Sorted(slices.Values(run.Notes))) {
		text += fmt.Sprintf("\n\nFailed: %.300s.", note)
	}
	return text
}

// publish writes the tables and the plots, with a description of the machine.
func (r results) publish(folder string) (err error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for _, plot := range plots() {
		if !plot.has(r.Samples) {
			continue
		}
		if err := os.WriteFile(filepath.Join(folder, plot.file), []byte(plot.draw(r.Samples)), 0o644); err != nil {
			return err
		}
	}
	f, err := os.Create(filepath.Join(folder, "table.md"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	const head = `# What was measured

By make bench on %s. Each figure is min / median / max over n rounds, one figure where they
are the same. The machine did other work beside it, as the load before each part says: absolute
figures are for the curious, ratios within a round and CPU a call are to be compared.

What ran:

`
	if _, err := fmt.Fprintf(f, head, r.Machine); err != nil {
		return err
	}
	for _, p := range peers() {
		if !slices.ContainsFunc(r.Samples, func(x sample) bool { return x.Peer == p.name }) {
			continue
		}
		if _, err := fmt.Fprintf(f, "- %s: %s. It keeps %s.\n", p.name, p.about, p.keeping); err != nil {
			return err
		}
	}
	return r.tables(f)
}
