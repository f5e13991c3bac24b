// Command dormouse hosts the MCP servers of a servers file on this machine. It also shows
// their processes and sessions, and manages API keys.
package main

import "github.com/dormouse-mcp/dormouse/infra/dormouse"

func main() { dormouse.Program{}.Main() }
