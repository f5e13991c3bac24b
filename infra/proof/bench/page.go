package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// pages have values of a run between the comments <!-- bench NAME --> and <!-- bench end -->.
var pages = []string{"docs/benchmarks.md", "docs/compare.md"}

var block = regexp.MustCompile(`(?s)(<!-- bench (\w+) -->)(.*?)(<!-- bench end -->)`)

// blocks maps each NAME to the function that writes its text. The function returns "" if the values were
// not measured.
var blocks = map[string]func(results) string{
	"calls": results.calls, "beside": results.beside, "compare": results.compared, "scale": results.grown, "one": results.atOne, "wake": results.woken,
}

// document writes the values of the run into the pages of the repository in root.
func (r results) document(root string) error {
	for _, page := range pages {
		file := root + "/" + page
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		filled, err := r.fill(string(text))
		if err != nil {
			return fmt.Errorf("%s: %w", page, err)
		}
		if err := os.WriteFile(file, []byte(filled), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// fill replaces those blocks of a page whose values were measured.
func (r results) fill(page string) (filled string, err error) {
	return block.ReplaceAllStringFunc(page, func(old string) string {
		m := block.FindStringSubmatch(old)
		write := blocks[m[2]]
		if write == nil {
			err = fmt.Errorf("there is no block %q of figures", m[2])
			return old
		}
		if now := write(r); now != "" {
			return m[1] + now + m[4]
		}
		return old
	}), err
}

// grid returns a table with a row for each label. The function at returns the text of a cell.
func grid(head string, columns, labels []string, at func(row, column int) string) string {
	var b strings.Builder
	b.WriteString("| " + strings.TrimLeft(head+" | ", " ") + strings.Join(columns, " | ") + " |\n" + strings.Repeat("|---", len(columns)+1) + "|\n")
	for i, label := range labels {
		b.WriteString("| " + label + " |")
		for j := range columns {
			b.WriteString(" " + at(i, j) + " |")
		}
		b.WriteString("\n")
	}
	return b.String()
}

// run returns a paragraph that says how a part of the benchmark was measured.
func (r results) run(part string) string {
	run := r.Parts[part]
	return fmt.Sprintf("\n%s, %d rounds, %s\n\n", r.Machine, run.Rounds, run)
}

// calls is the table of calls and sessions, as ratios to supergateway.
func (r results) calls() string {
	rows := []struct{ label, part, metric string }{
		{"p50 of a call at 1", "latency", "p50 at 1"},
		{"p95 of a call at 1", "latency", "p95 at 1"},
		{"calls a second at 16", "latency", "calls at 16"},
		{"CPU of a call at 16", "latency", "CPU a call at 16"},
		{"p50 of `initialize`", "latency", "initialize p50"},
		{"p50 of a session's first call", "latency", "first call p50"},
		{"sessions opened, called once and deleted, 16 at once, a second", "churn", "sessions"},
		{"resident memory without the servers, at 16", "latency", "RSS without servers"},
	}
	var names, heads, labels []string
	for _, p := range peers() {
		head, known := map[string]string{"dormouse": "`--durability process`", "dormouse-disk": "`--durability disk`", "tbxark": p.about, "punkpeye": p.about}[p.name]
		if known && r.Samples.ratio("latency", p.name, "supergateway", "p50 at 1").N > 0 {
			names, heads = append(names, p.name), append(heads, head)
		}
	}
	if len(names) == 0 {
		return ""
	}
	for _, row := range rows {
		labels = append(labels, row.label)
	}
	return r.run("latency") + grid("over supergateway", heads, labels, func(row, column int) string {
		return cell(r.Samples.ratio(rows[row].part, names[column], "supergateway", rows[row].metric))
	})
}

// over returns the median ratio of a metric of two peers in the part "latency", or "" if
// there is none. The argument base is the denominator.
func (r results) over(peer, base, metric string) string {
	s := r.Samples.ratio("latency", peer, base, metric)
	if s.N == 0 {
		return ""
	}
	return figure(s.Mid)
}

// beside returns a sentence that compares Dormouse with a gateway without sessions.
func (r results) beside() string {
	took, calls := r.over("dormouse", "tbxark", "p50 at 1"), r.over("dormouse", "tbxark", "calls at 16")
	if took == "" || calls == "" {
		return ""
	}
	return fmt.Sprintf("Dormouse takes %s times as long at 1, and answers %s times as many calls at 16.", took, calls)
}

// compared returns the sentences of docs/compare.md about other gateways.
func (r results) compared() string {
	calls, took, warm := r.over("tbxark", "dormouse", "calls at 16"), r.over("tbxark", "dormouse", "p50 at 1"), r.over("dormouse", "supergateway", "p50 at 1")
	if calls == "" || took == "" || warm == "" {
		return ""
	}
	return fmt.Sprintf("A gateway with one process for all clients and no sessions answers %s times as many, and a single call in %s of the time: TBXark/mcp-proxy. Beside a warm supergateway, a single call takes %s times as long", calls, took, warm)
}

// figures returns the table of a part of the benchmark, with a row for each peer and a column for
// each metric.
func (r results) figures(part string, columns, metrics []string) string {
	names := r.Samples.ran(part, nil)
	if len(names) == 0 {
		return ""
	}
	return r.run(part) + grid("", columns, names, func(row, column int) string {
		return cell(r.Samples.spread(part, names[row], metrics[column]))
	})
}

// grown returns the table of the part "scale".
func (r results) grown() string {
	return r.figures("scale", []string{"call p50, ms", "resident memory, MB", "files, MB", "`dormouse ps`, ms", "`dormouse sessions`, ms"},
		[]string{"call p50", "RSS of Dormouse", "files", "dormouse ps", "dormouse sessions"})
}

// atOne is the table of servers behind one address.
func (r results) atOne() string {
	return r.figures("one", []string{
		"first list, ms", "later lists, ms", "processes besides the servers", "resident memory, MB", "p50 of a call at the server's own address, ms", "at `/mcp`, ms", "at `/mcp?names=plain`, ms", "of a name that no server has, ms", "the same with `names=plain`, ms",
	}, []string{
		"first list", "next list", "processes besides servers", "RSS of Dormouse", "call at its own address p50", "call with a prefix p50", "call with names=plain p50", "unknown name p50", "unknown name with names=plain p50",
	})
}

// woken is a sentence about a call that wakes its server.
func (r results) woken() string {
	p50, p95 := r.Samples.spread("wake", "dormouse", "first call p50"), r.Samples.spread("wake", "dormouse", "first call p95")
	if p50.N == 0 {
		return ""
	}
	return fmt.Sprintf("\nA call that wakes a sleeping Go server takes %s ms, p95 %s ms: `make bench PART=wake`, %s\n", cell(p50), cell(p95), r.Parts["wake"])
}
