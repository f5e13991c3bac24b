// Package serversedit edits the servers file, and the .env beside it. It also imports servers from
// the configuration of other MCP clients. It keeps the comments and the order of the file.
//
// Values that may be secrets go to .env ([Env]); the servers file only refers to them. The package
// edits texts in memory and writes no files.
package serversedit
