// Package logline reads the log lines of function programs back into the records that
// they wrote.
package logline

import (
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/store/meter"
)

// Parse returns the record of a line that slog has written as JSON. A line that is none,
// such as the output of a panic, is not ok.
func Parse(line string) (r slog.Record, ok bool) {
	decoder := json.NewDecoder(strings.NewReader(line))
	decoder.UseNumber()
	var members map[string]any
	if decoder.Decode(&members) != nil {
		return r, false
	}
	msg, ok := members[slog.MessageKey].(string)
	stamp, _ := members[slog.TimeKey].(string)
	at, _ := time.Parse(time.RFC3339Nano, stamp) // zero if the line has no time
	r = slog.NewRecord(at, slog.LevelInfo, msg, 0)
	if said, counted := meter.ReadLine([]byte(line)); counted {
		r.AddAttrs(slog.Any("units", said.Units))
	}
	delete(members, "units")
	r.AddAttrs(attrs(members)...)
	return r, ok
}

// attrs returns the attributes of a group, with the types that the functions gave them.
func attrs(members map[string]any) (all []slog.Attr) {
	for _, key := range slices.Sorted(maps.Keys(members)) {
		value := slog.AnyValue(members[key])
		switch v := members[key].(type) {
		case json.Number:
			if n, err := v.Int64(); err == nil {
				value = slog.Int64Value(n)
			}
		case map[string]any:
			value = slog.GroupValue(attrs(v)...)
		case []any:
			var texts []string
			for _, one := range v {
				if text, ok := one.(string); ok {
					texts = append(texts, text)
				}
			}
			if len(texts) == len(v) {
				value = slog.AnyValue(texts)
			}
		}
		all = append(all, slog.Attr{Key: key, Value: value})
	}
	return all
}
