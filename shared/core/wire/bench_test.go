package wire_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// messages returns messages of the sizes that most calls have.
func messages() map[string][]byte {
	return map[string][]byte{
		"call-200B": []byte(`{"jsonrpc":"2.0","id":42,"method":"tools/call","params":{"name":"get_weather",` +
			`"arguments":{"city":"Oslo","units":"metric","days":3},"_meta":{"progressToken":"p42"}}}`),
		"tools-20KB": []byte(`{"jsonrpc":"2.0","id":2,"result":{"tools":[` + strings.TrimSuffix(strings.Repeat(
			`{"name":"search","description":"Searches \"everything\" there is to find.","inputSchema":{"type":"object",`+
				`"properties":{"query":{"type":"string"},"limit":{"type":"integer","minimum":1}},"required":["query"]}},`, 90), ",") + `]}}`),
		"image-1MB": []byte(`{"jsonrpc":"2.0","id":"a","result":{"content":[{"type":"image","data":"` +
			strings.Repeat("iVBORw0KGgo/", 1<<20/12) + `","mimeType":"image/png"}]}}`),
	}
}

func BenchmarkParse(b *testing.B) {
	for name, raw := range messages() {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := wire.Parse(raw); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkStdValid measures how long encoding/json takes to check validity alone, for
// comparison.
func BenchmarkStdValid(b *testing.B) {
	for name, raw := range messages() {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(raw)))
			for b.Loop() {
				if !json.Valid(raw) {
					b.Fatal("invalid")
				}
			}
		})
	}
}

func BenchmarkLookup(b *testing.B) {
	for name, raw := range messages() {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			for b.Loop() {
				wire.Lookup(raw, "params", "_meta", "progressToken")
			}
		})
	}
}

func BenchmarkReplace(b *testing.B) {
	value := json.RawMessage(`"r-17"`)
	for name, raw := range messages() {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			for b.Loop() {
				wire.Replace(raw, value, "id")
			}
		})
	}
}

func BenchmarkCompact(b *testing.B) {
	for name, raw := range messages() {
		var indented bytes.Buffer
		commontest.OK(b, json.Indent(&indented, raw, "", "  "))
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(indented.Len()))
			for b.Loop() {
				wire.Compact(indented.Bytes())
			}
		})
	}
}

func BenchmarkAppendSSE(b *testing.B) {
	for name, raw := range messages() {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(raw)))
			var buf []byte
			for b.Loop() {
				buf = wire.AppendSSE(buf[:0], wire.SSE{ID: "12/k7", Name: "message", Data: raw})
			}
		})
	}
}

func BenchmarkSSEReader(b *testing.B) {
	for name, raw := range messages() {
		stream := wire.AppendSSE(nil, wire.SSE{ID: "12/k7", Name: "message", Data: raw})
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(stream)))
			for b.Loop() {
				if _, err := wire.NewSSEReader(bytes.NewReader(stream), 2<<20).Next(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
