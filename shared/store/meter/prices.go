package meter

import (
	_ "embed" // prices.json
	"encoding/json"
)

//go:embed prices.json
var published []byte

// Price is the price of a number of units.
type Price struct {
	USD  float64 `json:"usd"`
	For  float64 `json:"for"` // number of units that cost USD; more than 0
	What string  `json:"what"`
}

// Prices has a price for each of the [Units], by its name in JSON.
type Prices struct {
	Date   string           `json:"date"` // when the prices were looked up, YYYY-MM-DD
	Region string           `json:"region"`
	Source string           `json:"source"`
	USD    map[string]Price `json:"usd"`
}

// Published returns AWS's list prices, with the date at which they were looked up.
func Published() Prices {
	var p Prices
	if err := json.Unmarshal(published, &p); err != nil { // the file is part of the program
		panic("meter: prices.json: " + err.Error())
	}
	return p
}

// Charge is a line of a bill.
type Charge struct {
	Unit  string  `json:"unit"` // its name in JSON
	What  string  `json:"what"`
	Count float64 `json:"count"`
	USD   float64 `json:"usd"`
}

// Bill returns a line for each unit that is used, in the order of the fields of Units.
func (p Prices) Bill(u Units) []Charge {
	var all []Charge
	u.Each(func(name string, n *float64) {
		if price, ok := p.USD[name]; ok && *n != 0 {
			all = append(all, Charge{Unit: name, What: price.What, Count: *n, USD: *n * price.USD / price.For})
		}
	})
	return all
}

// Cost returns the sum of the bill, in US dollars.
func (p Prices) Cost(u Units) (usd float64) {
	for _, c := range p.Bill(u) {
		usd += c.USD
	}
	return usd
}
