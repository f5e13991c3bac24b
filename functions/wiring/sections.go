package wiring

import (
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"slices"
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
		return unknownKey(err)
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
	return unknownKey(err)
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

// unknownKey rewords the error of package json about an unknown key.
func unknownKey(err error) error {
	if err == nil {
		return nil
	}
	before, key, found := strings.Cut(err.Error(), `json: unknown field "`)
	if !found {
		return err
	}
	return errors.New(before + `unknown key "` + key)
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
