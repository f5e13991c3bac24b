package serversfile

import (
	"cmp"
	"fmt"
	"strings"
)

// SettingTables returns the tables of docs/servers-file.md by the headings above them.
func SettingTables() map[string]string {
	server := &serverReader{reader: &reader{}}
	return map[string]string{
		"## Settings of a server: `x-dormouse`":                     table(server.serverSettings()),
		"## The box of a server: `x-dormouse.box`":                  table(server.boxSettings()),
		"## Settings of the file: `x-dormouse` beside `mcpServers`": table(server.fileSettings(&File{})),
	}
}

func table(settings []setting) string {
	var out strings.Builder
	out.WriteString("| key | value | default | meaning |\n|---|---|---|---|\n")
	var rows func(prefix string, settings []setting)
	rows = func(prefix string, settings []setting) {
		for _, s := range settings {
			rows(prefix+s.key+".", s.kind.below)
			if s.text == "" {
				continue
			}
			def := "`" + s.def + "`"
			if inner, ok := strings.CutPrefix(s.def, "("); ok {
				def = strings.TrimSuffix(inner, ")")
			}
			fmt.Fprintf(&out, "| `%s` | %s | %s | %s |\n", prefix+s.key, s.kind.values, cmp.Or(def, "none"), s.text)
		}
	}
	rows("", settings)
	return out.String()
}
