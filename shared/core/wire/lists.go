package wire

// List is one of the lists that a server may have and that clients read in pages.
type List struct {
	Capability string // the capability of a server that has the list
	Method     string // the method that asks for the list
	Entries    string // member of the result that has the entries
}

// Lists returns the lists that all versions of the protocol have.
func Lists() [4]List {
	return [...]List{
		{"tools", MethodToolsList, "tools"},
		{"prompts", MethodPromptsList, "prompts"},
		{"resources", MethodResourcesList, "resources"},
		{"resources", MethodResourceTemplatesList, "resourceTemplates"},
	}
}

// ListOf returns the list that a method asks for. ok is false for any other method.
func ListOf(method string) (l List, ok bool) {
	for _, l := range Lists() {
		if l.Method == method {
			return l, true
		}
	}
	return List{}, false
}
