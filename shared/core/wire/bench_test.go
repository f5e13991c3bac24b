package wire_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// BenchmarkMessages measures what is done to each message on its way, at sizes that most
// calls have. Valid is encoding/json's check alone, for comparison.
func BenchmarkMessages(b *testing.B) {
	const tool = `{"name":"search","description":"Searches \"everything\" there is to find.","inputSchema":{"type":"object",` +
		`"properties":{"query":{"type":"string"},"limit":{"type":"integer","minimum":1}},"required":["query"]}}`
	sizes := map[string][]byte{
		"call-200B": []byte(`{"jsonrpc":"2.0","id":42,"method":"tools/call","params":{"name":"get_weather",` +
			`"arguments":{"city":"Oslo","units":"metric","days":3},"_meta":{"progressToken":"p42"}}}`),
		"tools-20KB": []byte(`{"jsonrpc":"2.0","id":2,"result":{"tools":[` + tool + strings.Repeat(","+tool, 89) + `]}}`),
		"image-1MB":  []byte(`{"jsonrpc":"2.0","id":"a","result":{"content":[{"type":"image","data":"` + strings.Repeat("iVBORw0KGgo/", 1<<20/12) + `"}]}}`),
	}
	for op, do := range map[string]func(raw []byte){
		"Parse":     func(raw []byte) { _, _ = wire.Parse(raw) },
		"Valid":     func(raw []byte) { json.Valid(raw) },
		"Lookup":    func(raw []byte) { wire.Lookup(raw, "params", "_meta", "progressToken") },
		"Replace":   func(raw []byte) { wire.Replace(raw, json.RawMessage(`"r-17"`), "id") },
		"Compact":   func(raw []byte) { wire.Compact(raw) },
		"AppendSSE": func(raw []byte) { wire.AppendSSE(nil, wire.SSE{ID: "12/k7", Name: "message", Data: raw}) },
	} {
		for size, raw := range sizes {
			b.Run(op+"/"+size, func(b *testing.B) {
				b.SetBytes(int64(len(raw)))
				b.ReportAllocs()
				for b.Loop() {
					do(raw)
				}
			})
		}
	}
}
