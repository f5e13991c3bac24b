package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"

	"github.com/dormouse-mcp/dormouse/shared/store/meter"
)

// with returns prices with replacements from a JSON file, which has the form of
// prices.json. A price that the file leaves out stays. The file must have a date. The error
// names a unit that does not exist, or a price that is invalid.
func with(p meter.Prices, file []byte) (meter.Prices, error) {
	var own meter.Prices
	d := json.NewDecoder(bytes.NewReader(file))
	d.DisallowUnknownFields()
	if err := d.Decode(&own); err != nil {
		return meter.Prices{}, fmt.Errorf("the prices cannot be read: %w", err)
	}
	if own.Date == "" {
		return meter.Prices{}, fmt.Errorf(`the prices have no date; add "date": "YYYY-MM-DD"`)
	}
	known := map[string]bool{}
	var u meter.Units
	u.Each(func(name string, _ *float64) { known[name] = true })
	all := maps.Clone(p.USD)
	for name, price := range own.USD {
		if !known[name] {
			return meter.Prices{}, fmt.Errorf("the prices have %q, which is nothing that is billed", name)
		}
		if !(price.USD >= 0) || !(price.For > 0) || math.IsInf(price.USD, 1) {
			return meter.Prices{}, fmt.Errorf(`%q has no valid price; want "usd" of 0 or more and "for" above 0`, name)
		}
		price.What = cmp.Or(price.What, all[name].What)
		all[name] = price
	}
	own.Region, own.USD = cmp.Or(own.Region, p.Region), all
	return own, nil
}
