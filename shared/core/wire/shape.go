package wire

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// WrongShape rewords the error of encoding/json for a JSON value of the wrong type, without names of
// Go types: "groups cannot be a string; want an array". It returns any other err itself.
func WrongShape(err error) error {
	wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
	if !ok {
		return err
	}
	// The path of a key in an embedded struct begins with the struct's name in Go.
	keys := slices.DeleteFunc(strings.Split(wrong.Field, "."), func(key string) bool {
		first, _ := utf8.DecodeRuneInString(key)
		return unicode.IsUpper(first)
	})
	is, _, _ := strings.Cut(wrong.Value, " ") // "number 1.5" becomes "number"
	text := withArticle(is) + "; want " + wanted(wrong.Type)
	if key := strings.Join(keys, "."); key != "" {
		return errors.New(key + " cannot be " + text)
	}
	return errors.New("it cannot be " + text)
}

func withArticle(noun string) string {
	switch {
	case noun == "bool":
		return "true or false"
	case strings.ContainsAny(noun[:1], "aeiou"):
		return "an " + noun
	}
	return "a " + noun
}

// wanted says in words which JSON values a type takes.
func wanted(t reflect.Type) string {
	switch t.Kind() { //nolint:exhaustive // the rest are integers
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Float32, reflect.Float64:
		return "a number, such as 20 or 0.5"
	case reflect.Slice, reflect.Array:
		return "an array"
	case reflect.Map, reflect.Struct:
		return "an object"
	case reflect.Pointer:
		return wanted(t.Elem())
	}
	return "a whole number, such as 5000"
}
