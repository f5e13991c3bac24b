package wiring

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/access/credentials"
	"github.com/dormouse-mcp/dormouse/shared/access/quota"
	"github.com/dormouse-mcp/dormouse/shared/access/resourceserver"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
)

// CheckSections checks the sections limits, access and connect of a servers file, which package
// serversfile does not read. The error joins all mistakes, as that of [serversfile.Parse] does.
func CheckSections(c *serversfile.File) error {
	limits := func(section []byte) error {
		_, _, err := quota.Read(section)
		return err
	}
	third := func(section []byte) error {
		_, err := credentials.ReadProviders(section, nil)
		return unknownKey(err, section, reflect.TypeFor[map[string]credentials.Provider]())
	}
	var wrong []error
	add := func(name string, found []mistake) {
		for _, m := range found {
			wrong = append(wrong, c.Mistake("", name, m.key, "x-dormouse."+strings.TrimPrefix(m.why, "x-dormouse.")))
		}
	}
	add("limits", mistakes(c.Limits(), limits, limits))
	add("access", mistakes(c.Access(), readAccess, func(section []byte) error { return checkAccess(c, section) }))
	add("connect", mistakes(c.Connect(), third, third))
	return errors.Join(wrong...)
}

func readAccess(section []byte) error {
	_, err := resourceserver.ReadSettings(section)
	return unknownKey(err, section, reflect.TypeFor[accessKeys]())
}

// accessKeys has the valid keys of the section "access". Package serversfile reads the key "boxes".
type accessKeys struct {
	resourceserver.Settings

	Boxes bool `json:"boxes"`
}

// checkAccess checks the section "access" by the rules of an endpoint that accepts tokens. Where
// the endpoint would add a value, checkAccess adds a valid one. In a section with a ${VAR}, it
// checks only the keys, because the variable may be set only where the section is used.
func checkAccess(c *serversfile.File, section []byte) error {
	s, err := resourceserver.ReadSettings(section)
	if err != nil {
		return err
	}
	if strings.Contains(string(section), "${") {
		return nil
	}
	const valid = "https://example.com"
	s.PublicURL, s.Issuer, s.Groups = valid, cmp.Or(s.Issuer, valid), addresses(c)
	if s.Introspection != nil && s.Introspection.ClientID != "" {
		s.ClientSecret = "set"
	}
	_, err = s.Complete(c.Names())
	return err
}

// unknownKey rewords the error of package json about an unknown key in a section. The new error
// proposes known keys. The section was decoded into the type typ.
func unknownKey(err error, section []byte, typ reflect.Type) error {
	if err == nil {
		return nil
	}
	unknown := regexp.MustCompile(`json: unknown field "(.*)"$`).FindStringSubmatchIndex(err.Error())
	if unknown == nil {
		return err
	}
	text := err.Error()
	name := text[unknown[2]:unknown[3]]
	return fmt.Errorf("%sunknown key %q: %s", text[:unknown[0]], name, serversfile.Instead(name, knownBeside(name, section, typ)))
}

// knownBeside finds the JSON object with an unknown key, and returns the valid keys of that object.
// The argument value was decoded into the type typ.
func knownBeside(unknown string, value []byte, typ reflect.Type) []string {
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	var members map[string]json.RawMessage
	types := map[string]reflect.Type{} // by member
	switch typ.Kind() {
	case reflect.Slice:
		var elements []json.RawMessage
		_ = json.Unmarshal(value, &elements) // what is no list has no elements
		members = map[string]json.RawMessage{}
		for n, e := range elements {
			members[strconv.Itoa(n)], types[strconv.Itoa(n)] = e, typ.Elem()
		}
	case reflect.Map:
		_ = json.Unmarshal(value, &members) // what is no object has no members
		for key := range members {
			types[key] = typ.Elem()
		}
	case reflect.Struct:
		_ = json.Unmarshal(value, &members) // what is no object has no members
		for _, field := range reflect.VisibleFields(typ) {
			if key, _, _ := strings.Cut(field.Tag.Get("json"), ","); key != "" && key != "-" {
				types[key] = field.Type
			}
		}
		if _, has := members[unknown]; has && types[unknown] == nil {
			return slices.Sorted(maps.Keys(types))
		}
	default:
	}
	for _, key := range slices.Sorted(maps.Keys(members)) {
		if t := types[key]; t != nil {
			if known := knownBeside(unknown, members[key], t); known != nil {
				return known
			}
		}
	}
	return nil
}

// mistake is a mistake in a section of the servers file. The field key names the member that has
// it, or is "" if no single member has it.
type mistake struct{ key, why string }

// mistakes returns a mistake for each member of a section that readMember refuses. If readAll alone
// refuses the section, mistakes blames a member without which readAll accepts it. The argument
// section is nil if the file has none.
func mistakes(section []byte, readMember, readAll func([]byte) error) (all []mistake) {
	if section == nil {
		return nil
	}
	err := readAll(section)
	if err == nil {
		return nil
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(section, &members) != nil {
		return []mistake{{"", err.Error()}}
	}
	keys := slices.Sorted(maps.Keys(members))
	for _, key := range keys {
		if err := readMember(encode(map[string]json.RawMessage{key: members[key]})); err != nil {
			all = append(all, mistake{key, err.Error()})
		}
	}
	if all != nil {
		return all
	}
	i := slices.IndexFunc(keys, func(key string) bool {
		without := maps.Clone(members)
		delete(without, key)
		return readAll(encode(without)) == nil
	})
	if i < 0 {
		return []mistake{{"", err.Error()}}
	}
	return []mistake{{keys[i], err.Error()}}
}

func encode(members map[string]json.RawMessage) []byte {
	text, err := json.Marshal(members)
	if err != nil {
		panic("wiring: " + err.Error()) // all members were decoded from JSON
	}
	return text
}
