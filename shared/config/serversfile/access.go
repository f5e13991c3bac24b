package serversfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/config/policy"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// whoMayCall reads the key boxes of x-dormouse.access, and keeps the other keys as JSON for package
// resourceserver.
func (r *reader) whoMayCall(m member, c *File) {
	if !r.want(m.value, object, "x-dormouse.access") {
		return
	}
	r.access = r.filled(m.value)
	if boxes, ok := r.access.get("boxes"); ok {
		c.boxes = r.want(boxes.value, boolean, "x-dormouse.access: boxes") && boxes.value.on
		r.access.members = slices.DeleteFunc(slices.Clone(r.access.members), func(m member) bool { return m.name == "boxes" })
	}
	if len(r.access.members) > 0 {
		c.access = r.plain(nil, r.access)
	}
	if rules, ok := r.access.get("allow"); ok && rules.value.shape == object && len(rules.value.members) == 0 {
		r.fail(rules.at, `x-dormouse.access: allow names no server, so no one may use any server: name servers, or "*" for all`)
	}
}

// rule checks the rule for a server in access.allow. A mistake in it rejects the server.
func (r *reader) rule(server string) {
	rules, _ := r.access.get("allow")
	entry, ok := rules.value.get(server)
	if !ok {
		if entry, ok = rules.value.get(policy.EveryServer); !ok {
			return
		}
	}
	rule, err := r.oneRule(entry.value)
	if err == nil {
		err = rule.Check()
	}
	if err != nil {
		r.fail(entry.at, "x-dormouse.access: allow for %q: %s", entry.name, err)
	}
}

func (r *reader) oneRule(n node) (rule policy.Rule, err error) {
	d := json.NewDecoder(bytes.NewReader(r.plain(nil, n)))
	d.DisallowUnknownFields()
	err = d.Decode(&rule)
	if err != nil {
		return rule, errors.New(strings.TrimPrefix(wire.WrongShape(err).Error(), "json: "))
	}
	return rule, nil
}

// withoutRejected removes from x-dormouse.access what it says about rejected servers, so that the other
// servers are served. It also removes the rule for "*" if no server that is served needs it.
func (r *reader) withoutRejected(c *File) {
	if c.access == nil || len(c.rejected) == 0 {
		return
	}
	rules, _ := r.access.get("allow")
	used := slices.ContainsFunc(c.names, func(name string) bool {
		_, own := rules.value.get(name)
		return !own
	})
	gone := func(m member) bool {
		rejected := slices.ContainsFunc(c.rejected, func(r Rejection) bool { return r.Name == m.name })
		return rejected || m.name == policy.EveryServer && !used
	}
	all := r.access
	all.members = slices.Clone(all.members)
	for i, m := range all.members {
		if m.name == "allow" || m.name == "scopes" || m.name == "audiences" {
			all.members[i].value.members = slices.DeleteFunc(slices.Clone(m.value.members), gone)
		}
	}
	c.access = r.plain(nil, all)
}
