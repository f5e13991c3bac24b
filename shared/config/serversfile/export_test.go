package serversfile

// SettingTables returns the tables of docs/servers-file.md by the headings above them.
func SettingTables() map[string]string {
	server := &serverReader{reader: &reader{}}
	return map[string]string{
		"## Settings of a server: `x-dormouse`":                     table(server.serverSettings()),
		"## The box of a server: `x-dormouse.box`":                  table(server.boxSettings()),
		"## Settings of the file: `x-dormouse` beside `mcpServers`": table(server.fileSettings(&File{})),
	}
}
