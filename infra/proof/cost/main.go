// Command cost prints what Dormouse costs on AWS, as tables in Markdown: each operation, sessions
// that send nothing, and months of calls, beside the prices of alternatives. make bench-cost counts
// the operations first, with the real driver against DynamoDB Local. Prices come from package
// meter, or from a file.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"

	"github.com/dormouse-mcp/dormouse/shared/store/meter"
)

func main() {
	counts := flag.String("counts", "bin/cost/operations.json", "counted operations, as the tests of shared/backend/relay leave them")
	prices := flag.String("prices", "", "prices in the place of the published ones, in the form of shared/store/meter/prices.json")
	template := flag.String("template", "template.yaml", "the stack, for what it costs by itself")
	flag.Parse()
	if err := run(*counts, *prices, *template); err != nil {
		fmt.Fprintln(os.Stderr, "cost:", err)
		os.Exit(1)
	}
}

func run(counts, prices, template string) error {
	t := tables{out: os.Stdout, prices: meter.Published(), habits: meter.Usual()}
	text, err := os.ReadFile(counts)
	if err != nil {
		return fmt.Errorf("there are no counts; make bench-cost makes them: %w", err)
	}
	if err := json.Unmarshal(text, &t.operations); err != nil {
		return fmt.Errorf("%s: %w", counts, err)
	}
	if prices != "" {
		own, err := os.ReadFile(prices)
		if err != nil {
			return err
		}
		if t.prices, err = with(t.prices, own); err != nil {
			return fmt.Errorf("%s: %w", prices, err)
		}
	}
	if text, err = os.ReadFile(template); err != nil {
		return err
	}
	t.stack = stackOf(string(text))
	return t.print()
}
