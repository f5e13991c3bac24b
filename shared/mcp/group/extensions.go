package group

import (
	"encoding/json"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// MethodSkillsList lists the skills of a server (SEP-2640). A group joins the lists of its
// members, like those of MCP itself.
const MethodSkillsList = "skills/list"

// Names of extensions of MCP, which are keys of capabilities.extensions (SEP-2133).
const (
	tasksExtension  = "io.modelcontextprotocol/tasks"
	skillsExtension = "io.modelcontextprotocol/skills"
	official        = "io.modelcontextprotocol/"
)

// Owners returns the members that may have a method of an extension. Results are answers to initialize,
// nil if not known. Owners returns the first of these sets that is not empty:
//
//   - the members that declare the extension to which the method belongs by its name;
//   - the members that declare any unofficial extension;
//   - the members whose Result is nil.
func Owners(method string, members ...List) []string {
	var of, vendors, unknown []string
	for _, m := range members {
		if m.Result == nil {
			unknown = append(unknown, m.Member)
		}
		owns, vendor := false, false
		for extension := range wire.Members(wire.Lookup(m.Result, "capabilities", "extensions")) {
			owns = owns || extension != tasksExtension && belongs(method, extension)
			vendor = vendor || !strings.HasPrefix(extension, official)
		}
		if owns {
			of = append(of, m.Member)
		}
		if vendor {
			vendors = append(vendors, m.Member)
		}
	}
	switch {
	case len(of) > 0:
		return of
	case len(vendors) > 0:
		return vendors
	default:
		return unknown
	}
}

// belongs reports whether a method belongs to an extension by its name. Methods such as
// com.example/hello, hello/say and com.example/say belong to the extension com.example/hello.
func belongs(method, extension string) bool {
	if method == "resources/directory/read" {
		return extension == skillsExtension
	}
	first, _, _ := strings.Cut(method, "/")
	vendor, name, _ := strings.Cut(extension, "/")
	return method == extension || strings.HasPrefix(method, extension+"/") || first == name || first == vendor
}

// HasSkills reports whether a server declares skills in its answer to initialize.
func HasSkills(greeting json.RawMessage) bool {
	return wire.Lookup(greeting, "capabilities", "extensions", skillsExtension) != nil
}
