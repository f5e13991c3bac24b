package wire_test

import (
	"encoding/json"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

func TestAValueOfTheWrongTypeIsNamedByItsKey(t *testing.T) {
	type Inner struct {
		List []string `json:"list"`
	}
	var s struct {
		Inner
		Text  string            `json:"text"`
		Whole *int64            `json:"whole"`
		Price float64           `json:"price"`
		On    bool              `json:"on"`
		Deep  map[string]*Inner `json:"deep"`
	}
	for text, want := range map[string]string{
		`{"list":{}}`:          "list cannot be an object; want an array",
		`{"text":[1]}`:         "text cannot be an array; want a string",
		`{"whole":1.5}`:        "whole cannot be a number; want a whole number, such as 5000",
		`{"price":"5USD"}`:     "price cannot be a string; want a number, such as 20 or 0.5",
		`{"on":"yes"}`:         "on cannot be a string; want true or false",
		`{"text":true}`:        "text cannot be true or false; want a string",
		`{"deep":[]}`:          "deep cannot be an array; want an object",
		`{"deep":{"a":"b"}}`:   "deep cannot be a string; want an object",
		`[]`:                   "it cannot be an array; want an object",
		`{"deep":{"a":{}}, x}`: "invalid character 'x' looking for beginning of object key string",
	} {
		commontest.EqualIn(t, text, want, wire.WrongShape(json.Unmarshal([]byte(text), &s)).Error())
	}
}
