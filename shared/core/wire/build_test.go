package wire_test

import (
	"encoding/json"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

func TestBuiltMessages(t *testing.T) {
	const big = `9007199254740993`
	for want, got := range map[string][]byte{
		`{"jsonrpc":"2.0","id":9007199254740993,"error":{"code":-32700,"message":"a \"<b>\""}}`: wire.ErrorResponse(token(big), &wire.Error{Code: wire.CodeParse, Message: `a "<b>"`}),
		`{"jsonrpc":"2.0","id":null,"error":{"code":0,"message":"m","data":9007199254740993}}`:  wire.ErrorResponse(nil, &wire.Error{Message: "m", Data: json.RawMessage(big)}),
		// Data that has no JSON is left out.
		`{"jsonrpc":"2.0","id":null,"error":{"code":0,"message":"m\ufffd"}}`: wire.ErrorResponse(nil, &wire.Error{Message: "m\xff", Data: make(chan int)}),
		`{"jsonrpc":"2.0","id":9007199254740993,"result":{"a": 1e2}}`:        wire.ResultResponse(token(big), token(`{"a": 1e2}`)),
		`{"jsonrpc":"2.0","id":1,"result":{}}`:                               wire.ResultResponse(token(`1`), nil),
		`{"jsonrpc":"2.0","id":"a","method":"m","params":{"b":1}}`:           wire.NewRequest(token(`"a"`), "m", token(`{"b":1}`)),
		`{"jsonrpc":"2.0","id":2,"method":"ping"}`:                           wire.NewRequest(token(`2`), wire.MethodPing, nil),
		`{"jsonrpc":"2.0","method":"é\n"}`:                                   wire.NewNotification("é\n", nil),
	} {
		t.Run(want, func(t *testing.T) {
			commontest.Equal(t, want, string(got))
			_, err := wire.Parse(got)
			commontest.Check(t, err)
		})
	}
}

func TestInitializeNeverSelectsTheModernEra(t *testing.T) {
	tests := map[string]string{
		wire.V20241105: wire.V20241105,
		wire.V20250326: wire.V20250326,
		wire.V20250618: wire.V20250618,
		wire.V20251125: wire.V20251125,
		wire.V20260728: wire.V20251125,
		"2024-10-07":   wire.V20251125,
		"2099-01-01":   wire.V20251125,
		"":             wire.V20251125,
	}
	for requested, want := range tests {
		commontest.EqualIn(t, requested, want, wire.Negotiate(requested))
		commontest.EqualIn(t, requested, requested == want, wire.Legacy(requested))
	}
}

func TestDecodeHeaderValue(t *testing.T) {
	tests := []struct {
		value, want string
		ok          bool
	}{
		{"get_weather", "get_weather", true},
		{"a b\tc", "a b\tc", true},
		{"", "", true},
		{" a", " a", false},
		{"a ", "a ", false},
		{"é", "", false},
		{"a\x00", "", false},
		{"=?base64?w6k=?=", "é", true},
		{"=?base64??=", "", true},
		{"=?base64?w6k?=", "", false},
		{"=?base64?/w==?=", "\xff", false},
		{"=?base64?w6k=", "=?base64?w6k=", true},
		{"=?BASE64?w6k=?=", "=?BASE64?w6k=?=", true},
		{"=?base64?=", "=?base64?=", true},
	}
	for _, tt := range tests {
		t.Run(tt.value, func(t *testing.T) {
			got, ok := wire.DecodeHeaderValue(tt.value)
			if ok != tt.ok || ok && got != tt.want {
				t.Errorf("got %q, %v; want %q, %v", got, ok, tt.want, tt.ok)
			}
		})
	}
}
