package main

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// sample is one measured value: a metric of one peer in one round of a part of the benchmark.
type sample struct {
	Part   string  `json:"part"`
	Round  int     `json:"round"`
	Peer   string  `json:"peer"`
	Metric string  `json:"metric"`
	Unit   string  `json:"unit"`
	Value  float64 `json:"value"`
}

// spread is the min, median and max of a compared program's metric over the rounds.
type spread struct {
	N             int
	Min, Mid, Max float64
}

func spreadOf(values []float64) spread {
	if len(values) == 0 {
		return spread{Min: math.NaN(), Mid: math.NaN(), Max: math.NaN()}
	}
	sorted := slices.Sorted(slices.Values(values))
	return spread{len(sorted), sorted[0], median(sorted), sorted[len(sorted)-1]}
}

// median returns the median of sorted values. Between two values it is their mean.
func median(sorted []float64) float64 {
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

// quantile returns a quantile of durations in milliseconds, by the nearest rank. It is NaN
// if there are no durations.
func quantile(durations []time.Duration, q float64) float64 {
	if len(durations) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(durations))
	rank := int(math.Ceil(q*float64(len(sorted)))) - 1
	return ms(sorted[max(0, rank)])
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// samples are all values that a run has measured.
type samples []sample

// byRound returns the values of a metric of one compared program, by round.
func (s samples) byRound(part, peer, metric string) map[int]float64 {
	values := map[int]float64{}
	for _, x := range s {
		if x.Part == part && x.Peer == peer && x.Metric == metric && !math.IsNaN(x.Value) {
			values[x.Round] = x.Value
		}
	}
	return values
}

func (s samples) spread(part, peer, metric string) spread {
	var values []float64
	for _, v := range s.byRound(part, peer, metric) {
		values = append(values, v)
	}
	return spreadOf(values)
}

// ratio divides the values of a metric of one compared program by those of another, base. It
// divides values of the same round, because only these had about the same conditions.
func (s samples) ratio(part, peer, base, metric string) spread {
	below := s.byRound(part, base, metric)
	var values []float64
	for round, v := range s.byRound(part, peer, metric) {
		if b, ok := below[round]; ok && b > 0 {
			values = append(values, v/b)
		}
	}
	return spreadOf(values)
}

// metrics returns a sample of each metric of a part. The metrics of the program that has the most come
// first, then those that only others have, both in the order of measuring.
func (s samples) metrics(part string) []sample {
	all := map[string][]sample{} // by peer
	most := ""
	for _, x := range s {
		if x.Part != part || has(all[x.Peer], x.Metric) {
			continue
		}
		all[x.Peer] = append(all[x.Peer], x)
		if len(all[x.Peer]) > len(all[most]) {
			most = x.Peer
		}
	}
	ordered := all[most]
	for _, x := range s {
		if x.Part == part && !has(ordered, x.Metric) {
			ordered = append(ordered, x)
		}
	}
	return ordered
}

func has(list []sample, metric string) bool {
	return slices.ContainsFunc(list, func(x sample) bool { return x.Metric == metric })
}

// ran lists the programs that were measured in a part of the benchmark, in the given order.
func (s samples) ran(part string, order []string) []string {
	var names []string
	for _, x := range s {
		if x.Part == part && !slices.Contains(names, x.Peer) {
			names = append(names, x.Peer)
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(slices.Index(order, a), slices.Index(order, b)) })
	return names
}
