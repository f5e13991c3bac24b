//go:build aws

package catalog

// The functions of a stack read servers.json, which is taken for JSON by its name. So the
// reader of TOML, which would make them larger and slower to start, is not part of them.

func (source) isTOML() bool { return false }

func (source) toml() (node, *remark) { return node{}, &remark{at: 0, text: "TOML is not read here"} }
