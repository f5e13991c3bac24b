package relayserver_test

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// If two fields of an address had one name in a ticket, one of them would be lost
// silently.
func TestTicketKeepsEveryFieldOfAnAddress(t *testing.T) {
	sealer := sealerOf(t, 1)
	var a storage.Address
	fields := reflect.ValueOf(&a).Elem()
	for i := range fields.NumField() {
		switch f := fields.Field(i); f.Kind() {
		case reflect.String:
			f.SetString(fields.Type().Field(i).Name)
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Slice:
			f.Set(reflect.ValueOf([]json.RawMessage{[]byte("1")}))
		case reflect.Pointer:
			switch f.Interface().(type) {
			case *storage.Shown:
				f.Set(reflect.ValueOf(&storage.Shown{Tools: storage.ToolFilter{Allow: []string{"a"}, Deny: []string{"b"}}, Lists: []json.RawMessage{[]byte("1")}}))
			case *storage.Through:
				f.Set(reflect.ValueOf(&storage.Through{Group: "g", Server: "s", Plain: true}))
			default:
				t.Fatalf("a field of type %s, which this test does not fill", f.Type())
			}
		default:
			t.Fatalf("a field of kind %s, which this test does not fill", f.Kind())
		}
	}
	got, err := sealer.Open(sealer.Seal(a, 7))
	commontest.OK(t, err)
	if diff := cmp.Diff(a, got.Address); diff != "" || got.Gen != 7 {
		t.Errorf("generation %d, address %s", got.Gen, diff)
	}
}
